"""HAMi: `nvidia.com/gpu` counts shares, and beside it `nvidia.com/gpumem` (MiB), `nvidia.com/gpumem-percentage` and
`nvidia.com/gpucores` (percent) say how large each of them is. Without a count it is one; without memory, all of it.

Annotations choose the GPUs (`choices`). What others say is refused where a claim cannot keep it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import choices, forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, PeerScheduler, PodField, Resource, Unkept, WholeGpus
from gpuslice.model.requests import Request

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

MEMORY: Final = Resource("nvidia.com/gpumem")
MEMORY_PERCENTAGE: Final = Resource("nvidia.com/gpumem-percentage", forms.Percent())
CORES: Final = Resource("nvidia.com/gpucores", forms.Percent())
#: Orders HAMi's tasks on one GPU. We have no such order, but no node offers it either, so it must go.
PRIORITY: Final = Resource("nvidia.com/priority", unread=True)
MODE: Final = PodField("nvidia.com/vgpu-mode", forms.AnyText(), unkept=choices.MODE)
#: Which GPU of a node is filled first. No claim can say it, but agents do it so unless they are told otherwise.
GPU_POLICY: Final = PodField(
    "hami.io/gpu-scheduler-policy",
    forms.AnyText(),
    unkept=Unkept(
        "no claim says which GPU of a node is filled first",
        "leave it out: agents fill one before the next, or spread where they are configured so",
        kept="binpack",
    ),
)
NODE_POLICY: Final = PodField(
    "hami.io/node-scheduler-policy",
    forms.AnyText(),
    unkept=Unkept(
        "Kubernetes' own scheduler chooses the node, and no claim changes its order",
        "leave it out, or write spec.affinity or spec.topologySpreadConstraints",
    ),
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
    fields=(MODE, GPU_POLICY, NODE_POLICY),
    exclusive=(Exclusive(first=MEMORY, second=MEMORY_PERCENTAGE),),
    whole_gpus=WholeGpus.COUNT,
    schedulers=(PeerScheduler(name="hami-scheduler", knows="its policies for nodes and GPUs"),),
    memory_unit=_MIB,
)
