"""KAI Scheduler: a pod's annotation `gpu-fraction` is a part of a GPU's memory, `gpu-memory` an amount of it in
MiB, and `gpu-fraction-num-devices` says on how many GPUs. One container gets it: the first, or
`gpu-fraction-container-name`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, Need, PodField, TargetField
from gpuslice.model.requests import Request

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

FRACTION: Final = PodField("gpu-fraction", forms.PartOfGpu(up_to_one=False), asks=True)
MEMORY: Final = PodField(
    "gpu-memory",
    forms.PositiveNumber('it is in MiB, without a unit: write for example "2048" for 2 GiB', examples=("2048",)),
    asks=True,
)
DEVICES: Final = PodField("gpu-fraction-num-devices", forms.PositiveNumber(), asks=True)
_MIB: Final = 1024**2


def _read(said: Said) -> Asked:
    memory = said.value(MEMORY)
    request = Request(
        memory_bytes=None if memory is None else memory * _MIB,
        memory_fraction=said.value(FRACTION),
        devices=said.value(DEVICES) or 1,
    )
    return Asked(requests=(request,))


DIALECT: Final = Dialect(
    name="kai",
    read=_read,
    fields=(FRACTION, MEMORY, DEVICES),
    target=TargetField("gpu-fraction-container-name", forms.ContainerName()),
    exclusive=(Exclusive(first=FRACTION, second=MEMORY),),
    needs=(
        Need(
            field=DEVICES,
            any_of=(FRACTION, MEMORY),
            reason="says on how many GPUs, but not how much of each",
            remedy=f"add the annotation {FRACTION.name} or {MEMORY.name}",
        ),
    ),
)
