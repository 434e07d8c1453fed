"""HAMi: `nvidia.com/gpu` counts shares, and beside it `nvidia.com/gpumem` (MiB), `nvidia.com/gpumem-percentage` and
`nvidia.com/gpucores` (percent) say how large each of them is. Without a count it is one; without memory, all of it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import fields
from gpuslice.dialects.asking import Asked, Reader
from gpuslice.model.requests import Request, RequestError

if TYPE_CHECKING:
    from gpuslice.model.pods import Place

NAME: Final = "hami"
MEMORY: Final = "nvidia.com/gpumem"
MEMORY_PERCENTAGE: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
#: Orders HAMi's tasks on one GPU. We have no such order, but no node offers it either, so it must go.
PRIORITY: Final = "nvidia.com/priority"

_SIZES: Final = (MEMORY, MEMORY_PERCENTAGE, CORES)
#: They choose GPUs. We do not follow them, and say so.
ANNOTATIONS: Final = (
    "nvidia.com/use-gputype",
    "nvidia.com/nouse-gputype",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/nouse-gpuuuid",
)
_MIB: Final = 1024**2


def signs(place: Place, _reader: Reader) -> tuple[str, ...]:
    return tuple(fields.resource_field(place, name) for name in fields.asked(place, _SIZES))


def read(place: Place, reader: Reader) -> Asked:
    count = reader.settings.whole_resource
    memory, percentage = fields.read_resource(place, MEMORY), fields.read_resource(place, MEMORY_PERCENTAGE)
    if memory and percentage:
        raise RequestError(
            fields.resource_field(place, MEMORY),
            f"asks for memory, and so does {fields.resource_field(place, MEMORY_PERCENTAGE)}",
            "keep one of them",
        )
    cores = fields.read_resource(place, CORES)
    for name, percent in ((MEMORY_PERCENTAGE, percentage), (CORES, cores)):
        if percent > 100:
            raise RequestError(
                fields.resource_field(place, name), f"{percent} is above 100 percent of a GPU", "write 1 to 100"
            )
    request = Request(
        memory_bytes=memory * _MIB or None,
        memory_fraction=Fraction(percentage, 100) if percentage else None,
        cores=cores or None,
        devices=_devices(place, count),
    )
    return Asked(
        requests=(request,),
        resources=tuple(name for name in (count, *_SIZES, PRIORITY) if place.asks_by_name(name)),
        warnings=_warnings(place, reader),
    )


def _devices(place: Place, count: str) -> int:
    if not place.asks_by_name(count):
        return 1
    devices = fields.read_resource(place, count)
    if devices == 0:
        raise RequestError(
            fields.resource_field(place, count), "is 0, but the container says how large its shares are", "write 1"
        )
    return devices


def _warnings(place: Place, reader: Reader) -> tuple[str, ...]:
    ignored = [fields.annotation_field(name) for name in ANNOTATIONS if name in reader.annotations]
    if place.asks_by_name(PRIORITY):
        ignored.append(fields.resource_field(place, PRIORITY))
    return tuple(f"{field}: gpuslice does not read it" for field in ignored)
