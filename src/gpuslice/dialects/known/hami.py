"""HAMi: `nvidia.com/gpu` counts shares, and beside it `nvidia.com/gpumem` (MiB), `nvidia.com/gpumem-percentage` and
`nvidia.com/gpucores` (percent) say how large each of them is. Without a count it is one; without memory, all of it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, PodField, Resource, WholeGpus
from gpuslice.model.requests import Request

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

MEMORY: Final = Resource("nvidia.com/gpumem")
MEMORY_PERCENTAGE: Final = Resource("nvidia.com/gpumem-percentage", forms.Percent())
CORES: Final = Resource("nvidia.com/gpucores", forms.Percent())
#: Orders HAMi's tasks on one GPU. We have no such order, but no node offers it either, so it must go.
PRIORITY: Final = Resource("nvidia.com/priority", unread=True)
#: They choose GPUs.
_CHOICES: Final = (
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gputype",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gpuuuid",
)
_MIB: Final = 1024**2


def _read(said: Said) -> Asked:
    percentage = said.amount(MEMORY_PERCENTAGE)
    request = Request(
        memory_bytes=said.amount(MEMORY) * _MIB or None,
        memory_fraction=Fraction(percentage, 100) if percentage else None,
        cores=said.amount(CORES) or None,
        devices=said.whole_gpus or 1,
    )
    count = said.reader.settings.whole_resource
    named = (count, *(resource.name for resource in DIALECT.resources))
    return Asked(requests=(request,), resources=tuple(name for name in named if said.place.asks_by_name(name)))


DIALECT: Final = Dialect(
    name="hami",
    read=_read,
    prefixes=("nvidia.com/",),
    resources=(MEMORY, MEMORY_PERCENTAGE, CORES, PRIORITY),
    fields=tuple(PodField(name, forms.AnyText(), unread=True) for name in _CHOICES),
    exclusive=(Exclusive(first=MEMORY, second=MEMORY_PERCENTAGE),),
    whole_gpus=WholeGpus.COUNT,
)
