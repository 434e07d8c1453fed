"""KAI Scheduler: a pod's annotation `gpu-fraction` is a part of a GPU's memory, `gpu-memory` an amount of it in
MiB, and `gpu-fraction-num-devices` says on how many GPUs. One container gets it: the first, or
`gpu-fraction-container-name`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import fields
from gpuslice.dialects.asking import Asked, Reader
from gpuslice.model.requests import Request, RequestError

if TYPE_CHECKING:
    from gpuslice.model.pods import Place

NAME: Final = "kai"
FRACTION: Final = "gpu-fraction"
MEMORY: Final = "gpu-memory"
DEVICES: Final = "gpu-fraction-num-devices"
CONTAINER: Final = "gpu-fraction-container-name"
ANNOTATIONS: Final = (FRACTION, MEMORY, DEVICES, CONTAINER)

_MIB: Final = 1024**2


def signs(place: Place, reader: Reader) -> tuple[str, ...]:
    found = tuple(name for name in (FRACTION, MEMORY) if name in reader.annotations)
    if not found and DEVICES in reader.annotations:
        found = (DEVICES,)
    if not found or place.name != reader.once(_container):
        return ()
    return tuple(fields.annotation_field(name) for name in found)


def read(_place: Place, reader: Reader) -> Asked:
    fraction = fields.read_fraction(reader, FRACTION)
    memory = fields.read_number(reader, MEMORY, 'it is in MiB, without a unit: write for example "2048" for 2 GiB')
    devices = fields.read_number(reader, DEVICES)
    if fraction is not None and memory is not None:
        raise RequestError(
            fields.annotation_field(FRACTION),
            f"asks for memory, and so does {fields.annotation_field(MEMORY)}",
            "keep one of them",
        )
    if fraction is None and memory is None:
        raise RequestError(
            fields.annotation_field(DEVICES),
            "says on how many GPUs, but not how much of each",
            f"add the annotation {FRACTION} or {MEMORY}",
        )
    if fraction == 1:
        raise RequestError(
            fields.annotation_field(FRACTION), "is a whole GPU, not a part of one", "ask for nvidia.com/gpu instead"
        )
    request = Request(
        memory_bytes=memory * _MIB if memory is not None else None, memory_fraction=fraction, devices=devices or 1
    )
    return Asked(requests=(request,))


def _container(reader: Reader) -> str | None:
    """The name of the one that gets it."""
    wanted = reader.annotations.get(CONTAINER)
    if wanted is None:
        return next(iter(reader.names), None)
    if wanted not in reader.names:
        raise RequestError(
            fields.annotation_field(CONTAINER),
            f"the pod has no container {wanted!r}",
            f"its containers are {', '.join(reader.names)}",
        )
    return wanted
