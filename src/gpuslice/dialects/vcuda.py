"""vcuda, the dialect of Tencent's gpu-manager: cores in hundredths of a GPU, memory in units of 256 MiB.

Less than 100 cores is a share of one GPU and needs memory; a multiple of 100 is that many whole GPUs, whatever
memory is asked beside it, as gpu-manager has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import fields
from gpuslice.dialects.asking import Asked, Reader
from gpuslice.model.requests import Request, RequestError, whole_gpus

if TYPE_CHECKING:
    from gpuslice.model.pods import Place

NAME: Final = "vcuda"
CORE: Final = "tencent.com/vcuda-core"
MEMORY: Final = "tencent.com/vcuda-memory"
#: What gpu-manager reads from the pod beside the resources: how much of the compute may be used at most.
CORE_LIMIT: Final = "tencent.com/vcuda-core-limit"
ANNOTATIONS: Final = (CORE_LIMIT,)
_UNIT: Final = 256 * 1024**2


def signs(place: Place, _reader: Reader) -> tuple[str, ...]:
    return tuple(fields.resource_field(place, name) for name in fields.asked(place, (CORE, MEMORY)))


def read(place: Place, _reader: Reader) -> Asked:
    cores, units = fields.read_resource(place, CORE), fields.read_resource(place, MEMORY)
    resources = fields.asked(place, (CORE, MEMORY))
    if cores == 0:
        raise RequestError(
            fields.resource_field(place, MEMORY),
            f"asks for memory, but the container asks for no {CORE}",
            f"add {CORE}, 1 to 100 or a multiple of 100",
        )
    if cores > 100 and cores % 100:
        raise RequestError(
            fields.resource_field(place, CORE),
            f"{cores} is neither 1 to 100 nor a multiple of 100",
            f"write {cores // 100 * 100} or {-(-cores // 100) * 100} for whole GPUs, or up to 100 for one",
        )
    if cores >= 100:
        return Asked(requests=(whole_gpus(cores // 100),), resources=resources)
    if units == 0:
        raise RequestError(
            fields.resource_field(place, CORE),
            f"{cores} is a share of a GPU, but the container asks for no {MEMORY}",
            f"add {MEMORY}, in units of 256 MiB",
        )
    return Asked(requests=(Request(memory_bytes=units * _UNIT, cores=cores),), resources=resources)
