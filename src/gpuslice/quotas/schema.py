"""GpuQuota and QuotaTally objects: their shapes in the API. deploy/crds is made from these structs (tools/crds.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from gpuslice.kube.resources import Resource
from gpuslice.model.pods import Quantity  # noqa: TC001 - msgspec reads the types
from gpuslice.policies.schema import API_VERSION, GROUP, VERSION
from gpuslice.policies.stored_policies import Condition  # noqa: TC001 - msgspec reads the types

if TYPE_CHECKING:
    from collections.abc import Mapping

KIND: Final = "GpuQuota"
PLURAL: Final = "gpuquotas"
GPU_QUOTAS: Final = Resource(GROUP, VERSION, PLURAL)
TALLY_KIND: Final = "QuotaTally"
TALLY_PLURAL: Final = "quotatallies"
QUOTA_TALLIES: Final = Resource(GROUP, VERSION, TALLY_PLURAL)
RESOURCE_QUOTA_KIND: Final = "ResourceQuota"
RESOURCE_QUOTAS: Final = Resource("", "v1", "resourcequotas")

#: What a GpuQuota counts.
MEMORY: Final = "memory"
CORES: Final = "cores"
DEVICES: Final = "devices"

_Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class HardSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is left out is not limited."""

    memory: Annotated[Quantity | None, Meta(description="GPU memory of all slices together, as 40Gi.")] = None
    cores: Annotated[
        _Count | None,
        Meta(description="Percent of a GPU's compute, of all slices together: 200 is that of two GPUs."),
    ] = None
    devices: Annotated[
        _Count | None, Meta(description="Slices: shares of a GPU, MIG partitions and whole GPUs count one each.")
    ] = None


class GpuQuotaSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hard: Annotated[HardSpec, Meta(description="What the namespace's pods may hold, running and pending ones.")]


class StatusUser(msgspec.Struct, frozen=True):
    """A pod, and what it is charged."""

    pod: str
    used: dict[str, str]


class GpuQuotaStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """For people. Nothing is decided by it."""

    used: Annotated[dict[str, str], Meta(description="What pods hold, and what is reserved for new ones.")] = {}
    used_of_hard: Annotated[dict[str, str], Meta(description="Used and hard side by side, as 12Gi/40Gi.")] = {}
    largest: Annotated[tuple[StatusUser, ...], Meta(description="The pods that hold most, a few.")] = ()
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Scope(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A condition of a ResourceQuota about the pods that it counts, as Kubernetes writes it."""

    scope_name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


class User(msgspec.Struct, frozen=True):
    """A pod, and how much it holds."""

    pod: str
    used: dict[str, int]


class Count(msgspec.Struct, frozen=True, omit_defaults=True):
    """One quota: what it allows, and what is used of it, with what is reserved."""

    hard: dict[str, int]
    used: dict[str, int]
    scopes: tuple[Scope, ...] = ()
    #: A few, those that hold most first.
    largest: tuple[User, ...] = ()


class Reservation(msgspec.Struct, frozen=True):
    """What a pod will use that was admitted and is not counted yet, by quota."""

    pod: str
    charges: dict[str, dict[str, int]]


class TallySpec(msgspec.Struct, frozen=True):
    """The quotas of one namespace. Keys are a quota's kind and name (`GpuQuota/team`), and the UIDs of pods."""

    quotas: dict[str, Count] = {}
    reservations: dict[str, Reservation] = {}


def quota_key(kind: str, name: str) -> str:
    return f"{kind}/{name}"


def tally_document(namespace: str, home: str, tally: TallySpec) -> dict[str, object]:
    """The object to create. It is in gpuslice's own namespace, where no tenant writes."""
    metadata: Mapping[str, object] = {
        "name": namespace,
        "namespace": home,
        "labels": {"app.kubernetes.io/managed-by": "gpuslice"},
    }
    return {"apiVersion": API_VERSION, "kind": TALLY_KIND, "metadata": metadata, "spec": tally}
