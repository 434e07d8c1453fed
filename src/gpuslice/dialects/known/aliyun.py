"""Aliyun's GPU sharing: `aliyun.com/gpu-mem` is memory in GiB, or in MiB where its device plugin was installed so, and
`aliyun.com/gpu-core.percentage` a part of the GPU's compute. The pod's label `aliyun.com/gpu-count` spreads both evenly
over so many GPUs, and so does the resource of that name; a container that asks for nothing else gets whole GPUs by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Asked, Dialect, Need, PodField, Resource
from gpuslice.model.requests import Request, whole_gpus
from gpuslice.model.settings import Setting, one_of

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said
    from gpuslice.model.settings import Settings

_UNITS: Final = {"GiB": 1024**3, "MiB": 1024**2}

MEMORY: Final = Resource("aliyun.com/gpu-mem")
CORES: Final = Resource("aliyun.com/gpu-core.percentage")
COUNT: Final = Resource("aliyun.com/gpu-count")
SPREAD: Final = PodField("aliyun.com/gpu-count", forms.PositiveNumber(), kind="labels")
MEMORY_UNIT: Final = Setting(
    "aliyun.memoryUnit",
    "GiB",
    one_of(*_UNITS),
    kind=str,
    description="The unit of aliyun.com/gpu-mem, as its device plugin was installed: GiB or MiB.",
)


def _read(said: Said) -> Asked:
    by_label, counted = said.value(SPREAD), said.amount(COUNT)
    devices = by_label or counted or 1
    memory = said.amount(MEMORY) * _unit(said.reader.settings)
    request = whole_gpus(devices)
    if memory:
        cores = -(-said.amount(CORES) // devices) or None
        request = Request(memory_bytes=-(-memory // devices), cores=cores, devices=devices)
    warnings: tuple[str, ...] = ()
    if by_label and counted and by_label != counted:
        warnings = (f"{said.path(COUNT)}: is {counted}, but {said.path(SPREAD)} says {by_label}, which holds",)
    return Asked(requests=(request,), resources=tuple(said.amounts), warnings=warnings)


def _unit(settings: Settings) -> int:
    return _UNITS[settings.get(MEMORY_UNIT)]


DIALECT: Final = Dialect(
    name="aliyun",
    read=_read,
    prefixes=("aliyun.com/gpu-",),
    resources=(MEMORY, CORES, COUNT),
    fields=(SPREAD,),
    needs=(
        Need(
            field=CORES,
            any_of=(MEMORY,),
            reason=f"asks for cores, but the container asks for no {MEMORY.name}",
            remedy=f"add {MEMORY.name}",
        ),
    ),
    memory_unit=_unit,
    settings=(MEMORY_UNIT,),
)
