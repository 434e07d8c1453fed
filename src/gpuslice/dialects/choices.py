"""Annotations by which users of HAMi and Volcano choose GPUs. They become selectors and constraints of the claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuslice.dialects import choice_forms
from gpuslice.dialects.dialect import PodField, Unkept
from gpuslice.model.choices import GpuChoice
from gpuslice.model.requests import RequestError

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Reader
    from gpuslice.model.requests import Request

USE_TYPE: Final = PodField("nvidia.com/use-gputype", choice_forms.GpuTypes())
NO_USE_TYPE: Final = PodField("nvidia.com/nouse-gputype", USE_TYPE.form)
USE_UUID: Final = PodField("nvidia.com/use-gpuuuid", choice_forms.GpuUuids())
NO_USE_UUID: Final = PodField("nvidia.com/nouse-gpuuuid", USE_UUID.form)
NUMA_BIND: Final = PodField("nvidia.com/numa-bind", choice_forms.Flag())
#: Of a field that names the ways of sharing which a pod takes: one of them is by limits on a shared GPU, as here.
MODE: Final = Unkept(
    "gpuslice shares GPUs by limits on memory and compute",
    "leave it out, or ask for a MIG partition by nvidia.com/mig-<profile>",
    kept="hami-core",
)
FIELDS: Final[tuple[PodField[Any], ...]] = (USE_TYPE, NO_USE_TYPE, USE_UUID, NO_USE_UUID, NUMA_BIND)
NAMES: Final = frozenset(field.name for field in FIELDS)
_OPEN: Final = GpuChoice()


def read(reader: Reader, request: Request) -> GpuChoice | None:
    """The pod's choice for what it asks; None if it leaves it open. RequestError says what no claim can keep."""
    if NAMES.isdisjoint(reader.annotations):
        return None
    bound: bool | None = reader.parsed(NUMA_BIND)
    choice = GpuChoice(
        types=reader.parsed(USE_TYPE) or (),
        excluded_types=reader.parsed(NO_USE_TYPE) or (),
        uuids=reader.parsed(USE_UUID) or (),
        excluded_uuids=reader.parsed(NO_USE_UUID) or (),
        one_numa_node=bool(bound) and request.devices > 1,
    )
    if choice.one_numa_node and request.mig_profile is not None:
        raise RequestError(
            NUMA_BIND.path_in(reader.settings),
            "each MIG partition is a claim of its own, and no claim knows of others",
            "leave it out, or ask for one partition",
        )
    return None if choice == _OPEN else choice
