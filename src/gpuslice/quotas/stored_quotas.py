"""Quotas as the API server holds them: GpuQuotas, and of ResourceQuotas what they say about names of dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.dialects import registry
from gpuslice.kube.resources import Metadata  # noqa: TC001 - msgspec reads the types
from gpuslice.model.pods import Quantity  # noqa: TC001 - msgspec reads the types
from gpuslice.model.values import kubernetes_quantities
from gpuslice.quotas.schema import CORES, DEVICES, MEMORY, Count, GpuQuotaStatus, Scope, TallySpec

if TYPE_CHECKING:
    from gpuslice.model.settings import Settings

REQUESTS: Final = "requests."


class _GpuQuotaHard(msgspec.Struct, frozen=True):
    memory: Quantity | None = None
    cores: int | None = None
    devices: int | None = None


class _GpuQuotaSpec(msgspec.Struct, frozen=True):
    hard: _GpuQuotaHard = _GpuQuotaHard()


class StoredGpuQuota(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _GpuQuotaSpec = _GpuQuotaSpec()
    status: GpuQuotaStatus = GpuQuotaStatus()


class _ScopeSelector(msgspec.Struct, frozen=True, rename="camel"):
    match_expressions: tuple[Scope, ...] = ()


class _ResourceQuotaSpec(msgspec.Struct, frozen=True, rename="camel"):
    hard: dict[str, Quantity] | None = None
    scopes: tuple[str, ...] | None = None
    scope_selector: _ScopeSelector | None = None


class StoredResourceQuota(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _ResourceQuotaSpec = _ResourceQuotaSpec()


class StoredTally(msgspec.Struct, frozen=True):
    """A QuotaTally, as gpuslice wrote it."""

    metadata: Metadata
    spec: TallySpec = TallySpec()


def of_gpu_quota(stored: StoredGpuQuota) -> Count:
    """What it allows; nothing is counted yet."""
    hard, found = stored.spec.hard, {}
    if hard.memory is not None:
        found[MEMORY] = int(kubernetes_quantities.parse_quantity(hard.memory))
    if hard.cores is not None:
        found[CORES] = hard.cores
    if hard.devices is not None:
        found[DEVICES] = hard.devices
    return Count(found, {})


def of_resource_quota(stored: StoredResourceQuota, settings: Settings) -> Count | None:
    """What it allows of names that admission may take off a pod, after which Kubernetes does not count them any more.
    None if it names none.
    """
    spec = stored.spec
    found = {
        name: int(kubernetes_quantities.parse_quantity(amount))
        for name, amount in (spec.hard or {}).items()
        if name.startswith(REQUESTS) and may_be_rewritten(name.removeprefix(REQUESTS), settings)
    }
    if not found:
        return None
    selector = spec.scope_selector
    scopes = (*(Scope(name) for name in spec.scopes or ()), *(selector.match_expressions if selector else ()))
    return Count(found, {}, scopes)


def may_be_rewritten(resource: str, settings: Settings) -> bool:
    """Whether a dialect may read the resource."""
    return resource in (settings.whole_resource, settings.shared_resource) or resource.startswith(
        registry.RESOURCE_PREFIXES
    )
