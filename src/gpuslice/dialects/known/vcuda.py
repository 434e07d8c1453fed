"""vcuda, the dialect of Tencent's gpu-manager: cores in hundredths of a GPU, memory in units of 256 MiB.

Less than 100 cores is a share of one GPU and needs memory; a multiple of 100 is that many whole GPUs, whatever
memory is asked beside it, as gpu-manager has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Asked, Dialect, Need, PodField, Resource
from gpuslice.model.policies import Backend
from gpuslice.model.requests import Request, whole_gpus

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

CORE: Final = Resource("tencent.com/vcuda-core", forms.HundredthsOfGpus())
MEMORY: Final = Resource("tencent.com/vcuda-memory")
#: What gpu-manager reads from the pod beside the resources: how much of the compute may be used at most.
CORE_LIMIT: Final = PodField("tencent.com/vcuda-core-limit", forms.AnyText())
_UNIT: Final = 256 * 1024**2


def _read(said: Said) -> Asked:
    cores = said.amount(CORE)
    if forms.is_share(cores):
        request = Request(memory_bytes=said.amount(MEMORY) * _UNIT, cores=cores)
    else:
        request = whole_gpus(cores // 100)
    return Asked(requests=(request,), resources=tuple(said.amounts))


DIALECT: Final = Dialect(
    name="vcuda",
    read=_read,
    prefixes=("tencent.com/vcuda-",),
    resources=(CORE, MEMORY),
    fields=(CORE_LIMIT,),
    needs=(
        Need(
            field=MEMORY,
            any_of=(CORE,),
            reason=f"asks for memory, but the container asks for no {CORE.name}",
            remedy=f"add {CORE.name}, 1 to 100 or a multiple of 100",
        ),
        Need(
            field=CORE,
            any_of=(MEMORY,),
            of_shares=True,
            reason=f"{{amount}} is a share of a GPU, but the container asks for no {MEMORY.name}",
            remedy=f"add {MEMORY.name}, in units of 256 MiB",
        ),
    ),
    memory_unit=_UNIT,
    also_read_by=Backend.GPU_MANAGER,
)
