"""Volcano: `volcano.sh/vgpu-number` counts shares, each on a GPU of its own, and beside it `volcano.sh/vgpu-memory`
(MiB, or as many of them as its device plugin's memory factor says), `volcano.sh/vgpu-memory-percentage` and
`volcano.sh/vgpu-cores` (percent) say how large each of them is. Without a number it is one; without memory, all of it.

Before these there were `volcano.sh/gpu-memory`, a part of one GPU, and `volcano.sh/gpu-number`, whole GPUs.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import choices, forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, PeerScheduler, PodField, Resource, Unkept
from gpuslice.model.requests import Request, whole_gpus
from gpuslice.model.settings import Setting, number

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said
    from gpuslice.model.settings import Settings

NUMBER: Final = Resource("volcano.sh/vgpu-number")
MEMORY: Final = Resource("volcano.sh/vgpu-memory")
MEMORY_PERCENTAGE: Final = Resource("volcano.sh/vgpu-memory-percentage", forms.Percent())
CORES: Final = Resource("volcano.sh/vgpu-cores", forms.Percent())
OLD_MEMORY: Final = Resource("volcano.sh/gpu-memory")
OLD_NUMBER: Final = Resource("volcano.sh/gpu-number")
_SHARES: Final = (NUMBER, MEMORY, MEMORY_PERCENTAGE, CORES)
MODE: Final = PodField("volcano.sh/vgpu-mode", forms.AnyText(), unkept=choices.MODE)
GROUP_POLICY: Final = PodField(
    "volcano.sh/vgpu-podgroup-policy",
    forms.AnyText(),
    unkept=Unkept(
        "it spreads the pods of a group, and no claim knows of others",
        "leave it out, or write spec.topologySpreadConstraints",
    ),
)
#: Volcano's device plugin calls it so, too.
MEMORY_FACTOR: Final = Setting(
    "volcano.gpuMemoryFactor",
    1,
    number("a number of MiB", 1024),
    description="How many MiB one volcano.sh/vgpu-memory is: the gpuMemoryFactor of Volcano's device plugin.",
)
_MIB: Final = 1024**2


def _read(said: Said) -> Asked:
    percentage = said.amount(MEMORY_PERCENTAGE)
    memory = said.amount(MEMORY) or said.amount(OLD_MEMORY)
    request = Request(
        memory_bytes=memory * _unit(said.reader.settings) or None,
        memory_fraction=Fraction(percentage, 100) if percentage else None,
        cores=said.amount(CORES) or None,
        devices=said.amount(NUMBER) or 1,
    )
    if whole := said.amount(OLD_NUMBER):
        request = whole_gpus(whole)
    named = (resource.name for resource in DIALECT.resources)
    return Asked(requests=(request,), resources=tuple(name for name in named if said.place.asks_by_name(name)))


def _unit(settings: Settings) -> int:
    return settings.get(MEMORY_FACTOR) * _MIB


DIALECT: Final = Dialect(
    name="volcano",
    read=_read,
    prefixes=("volcano.sh/vgpu-", "volcano.sh/gpu-"),
    resources=(*_SHARES, OLD_MEMORY, OLD_NUMBER),
    fields=(MODE, GROUP_POLICY),
    exclusive=(
        Exclusive(first=MEMORY, second=MEMORY_PERCENTAGE),
        Exclusive(first=OLD_MEMORY, second=OLD_NUMBER, what="GPUs"),
        *(Exclusive(first=old, second=share, what="GPUs") for old in (OLD_MEMORY, OLD_NUMBER) for share in _SHARES),
    ),
    schedulers=(PeerScheduler(name="volcano", knows="queues, pod groups and its policies for GPUs"),),
    memory_unit=_unit,
    settings=(MEMORY_FACTOR,),
)
