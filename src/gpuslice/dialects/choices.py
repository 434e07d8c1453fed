"""Annotations by which HAMi's and Volcano's users choose GPUs. They become selectors and constraints of the claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuslice.dialects import choice_forms
from gpuslice.dialects.dialect import PodField, Unkept
from gpuslice.model.choices import GpuChoice

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

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
_NAMES: Final = frozenset(field.name for field in FIELDS)
_OPEN: Final = GpuChoice()


def read(said: Said, devices: int) -> GpuChoice | None:
    """The pod's choice for so many GPUs; None if it leaves it open."""
    if _NAMES.isdisjoint(said.reader.annotations):
        return None
    bound: bool | None = said.value(NUMA_BIND)
    choice = GpuChoice(
        types=said.value(USE_TYPE) or (),
        excluded_types=said.value(NO_USE_TYPE) or (),
        uuids=said.value(USE_UUID) or (),
        excluded_uuids=said.value(NO_USE_UUID) or (),
        one_numa_node=devices > 1 and bool(bound),
    )
    return None if choice == _OPEN else choice
