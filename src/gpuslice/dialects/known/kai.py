"""KAI Scheduler, and Run:ai, whose scheduler it is: a pod's annotation `gpu-fraction` is a part of a GPU's memory,
`gpu-memory` an amount of it in MiB, and `gpu-fraction-num-devices` says on how many GPUs. One container gets it: the
first, or `gpu-fraction-container-name`. Run:ai's users write the first two as labels, too, with the same meaning.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, Need, PeerScheduler, PodField, TargetField, Unkept
from gpuslice.model.requests import Request

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

FRACTION: Final = PodField("gpu-fraction", forms.PartOfGpu(up_to_one=False), asks=True)
MEMORY: Final = PodField(
    "gpu-memory",
    forms.PositiveNumber('it is in MiB, without a unit: write for example "2048" for 2 GiB', examples=("2048",)),
    asks=True,
)
#: The same as labels.
LABEL_FRACTION: Final = PodField(FRACTION.name, FRACTION.form, asks=True, kind="labels")
LABEL_MEMORY: Final = PodField(MEMORY.name, MEMORY.form, asks=True, kind="labels")
_SIZES: Final[tuple[PodField[Any], ...]] = (FRACTION, MEMORY, LABEL_FRACTION, LABEL_MEMORY)
DEVICES: Final = PodField("gpu-fraction-num-devices", forms.PositiveNumber(), asks=True)
#: Of Run:ai: how far the request may grow while others leave memory unused. Here it is the limit, too.
_LIMITS: Final = tuple(
    PodField(f"{size}-limit", forms.AnyText(), unread=True) for size in ("gpu-fraction", "gpu-memory")
)
_BY_ITS_SCHEDULER: Final = Unkept(
    "it tells KAI's scheduler which nodes to choose, and Kubernetes' own places this pod",
    "leave it out, or write spec.nodeSelector",
)
_NODE_POOLS: Final = tuple(
    PodField(name, forms.AnyText(), kind="labels", unkept=_BY_ITS_SCHEDULER)
    for name in ("kai.scheduler/node-pool", "runai/node-pool")
)
_MIB: Final = 1024**2


def _read(said: Said) -> Asked:
    memory = said.value(MEMORY) or said.value(LABEL_MEMORY)
    request = Request(
        memory_bytes=None if memory is None else memory * _MIB,
        memory_fraction=said.value(FRACTION) or said.value(LABEL_FRACTION),
        devices=said.value(DEVICES) or 1,
    )
    return Asked(requests=(request,))


DIALECT: Final = Dialect(
    name="kai",
    read=_read,
    fields=(*_SIZES, DEVICES, *_LIMITS, *_NODE_POOLS),
    target=TargetField("gpu-fraction-container-name", forms.ContainerName()),
    schedulers=tuple(
        PeerScheduler(name=name, knows="queues, pod groups and topologies")
        for name in ("kai-scheduler", "runai-scheduler")
    ),
    memory_unit=_MIB,
    says_cores=False,
    exclusive=tuple(Exclusive(first=first, second=second) for first, second in combinations(_SIZES, 2)),
    needs=(
        Need(
            field=DEVICES,
            any_of=_SIZES,
            reason="says on how many GPUs, but not how much of each",
            remedy=f"add the annotation {FRACTION.name} or {MEMORY.name}",
        ),
    ),
)
