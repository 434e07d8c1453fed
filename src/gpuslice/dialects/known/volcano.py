"""Volcano: `volcano.sh/vgpu-number` counts shares, each on a GPU of its own, and beside it `volcano.sh/vgpu-memory`
(MiB, or as many of them as its device plugin's memory factor says), `volcano.sh/vgpu-memory-percentage` and
`volcano.sh/vgpu-cores` (percent) say how large each of them is. Without a number it is one; without memory, all of it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import choices, forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, PeerScheduler, PodField, Resource, Unkept
from gpuslice.model.requests import Request
from gpuslice.model.settings import Setting, number

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said
    from gpuslice.model.settings import Settings

NUMBER: Final = Resource("volcano.sh/vgpu-number")
MEMORY: Final = Resource("volcano.sh/vgpu-memory")
MEMORY_PERCENTAGE: Final = Resource("volcano.sh/vgpu-memory-percentage", forms.Percent())
CORES: Final = Resource("volcano.sh/vgpu-cores", forms.Percent())
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
    unit = _unit(said.reader.settings)
    devices = said.amount(NUMBER) or 1
    request = Request(
        memory_bytes=said.amount(MEMORY) * unit or None,
        memory_fraction=Fraction(percentage, 100) if percentage else None,
        cores=said.amount(CORES) or None,
        devices=devices,
        choice=choices.read(said, devices),
    )
    named = (resource.name for resource in DIALECT.resources)
    return Asked(requests=(request,), resources=tuple(name for name in named if said.place.asks_by_name(name)))


def _unit(settings: Settings) -> int:
    return settings.get(MEMORY_FACTOR) * _MIB


DIALECT: Final = Dialect(
    name="volcano",
    read=_read,
    prefixes=("volcano.sh/vgpu-",),
    resources=(NUMBER, MEMORY, MEMORY_PERCENTAGE, CORES),
    fields=(*choices.FIELDS, MODE, GROUP_POLICY),
    exclusive=(Exclusive(first=MEMORY, second=MEMORY_PERCENTAGE),),
    schedulers=(PeerScheduler(name="volcano", knows="queues, pod groups and its policies for GPUs"),),
    memory_unit=_unit,
    settings=(MEMORY_FACTOR,),
)
