"""gpuslice's own dialect.

A container's limits say `gpuslice.io/memory` and `gpuslice.io/cores`. Or the pod's annotation
`gpuslice.io/fraction` gives a part of a GPU, memory and cores alike, to the containers that
`gpuslice.io/containers` names, else to the first. The annotations `gpuslice.io/gpu-model` and `gpuslice.io/sharing`
hold for all of the pod.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import fields
from gpuslice.dialects.asking import Asked, Reader
from gpuslice.model import gpus
from gpuslice.model.requests import Request, RequestError

if TYPE_CHECKING:
    from fractions import Fraction

    from gpuslice.model.pods import Place

NAME: Final = "native"
MEMORY: Final = "gpuslice.io/memory"
CORES: Final = "gpuslice.io/cores"
FRACTION: Final = "gpuslice.io/fraction"
CONTAINERS: Final = "gpuslice.io/containers"
GPU_MODEL: Final = "gpuslice.io/gpu-model"
SHARING: Final = "gpuslice.io/sharing"
ANNOTATIONS: Final = (FRACTION, CONTAINERS, GPU_MODEL, SHARING)

#: What a model's name may be: it goes into a CEL expression, and attributes have at most 64 characters.
MODEL: Final = "[A-Za-z0-9][A-Za-z0-9 ._+()-]{0,63}"
#: Whether each container has a slice of its own, or all hold one together.
WAYS: Final = ("container", "pod")

_MODEL: Final = re.compile(MODEL, re.ASCII)


def signs(place: Place, reader: Reader) -> tuple[str, ...]:
    found = tuple(fields.resource_field(place, name) for name in fields.asked(place, (MEMORY, CORES)))
    if FRACTION in reader.annotations and place.name in reader.once(_containers):
        found += (fields.annotation_field(FRACTION),)
    return found


def read(place: Place, reader: Reader) -> Asked:
    resources = fields.asked(place, (MEMORY, CORES))
    fraction = fields.read_fraction(reader, FRACTION) if place.name in reader.once(_containers) else None
    memory = fields.read_resource(place, MEMORY) or None
    if memory is not None and fraction is not None:
        raise RequestError(
            fields.resource_field(place, MEMORY),
            f"asks for memory, and so does {fields.annotation_field(FRACTION)}",
            "keep one of them",
        )
    request = Request(
        memory_bytes=memory,
        memory_fraction=fraction,
        cores=_cores(place, fraction),
        gpu_model=_gpu_model(reader),
        shared_in_pod=_shared_in_pod(reader),
    )
    return Asked(requests=(request,), resources=resources)


def check_model(text: str) -> str:
    """The model, under our name for it if we have one."""
    wanted = text.strip()
    if _MODEL.fullmatch(wanted) is None:
        raise ValueError(f"{text!r} is not the name of a GPU model: write for example {', '.join(gpus.PRESETS)}")
    try:
        return gpus.model_named(wanted).name
    except ValueError:
        return wanted  # a GPU that we do not know by name; the nodes say what they have


def _cores(place: Place, fraction: Fraction | None) -> int | None:
    cores = fields.read_resource(place, CORES)
    if cores > 100:
        raise RequestError(
            fields.resource_field(place, CORES), f"{cores} is above 100 percent of a GPU", "write 1 to 100"
        )
    if cores:
        return cores
    # Rounded down, so that three thirds fit; but a small part is still a part.
    return None if fraction is None else max(1, math.floor(100 * fraction))


def _containers(reader: Reader) -> frozenset[str]:
    """Whom the fraction is for."""
    listed = reader.annotations.get(CONTAINERS)
    if listed is None:
        return frozenset(reader.names[:1])
    names = frozenset(name.strip() for name in listed.split(","))
    for name in sorted(names - frozenset(reader.names)):
        raise RequestError(
            fields.annotation_field(CONTAINERS),
            f"the pod has no container {name!r}",
            f"its containers are {', '.join(reader.names)}",
        )
    return names


def _gpu_model(reader: Reader) -> str | None:
    text = reader.annotations.get(GPU_MODEL)
    if text is None:
        return None
    try:
        return check_model(text)
    except ValueError as error:
        raise RequestError(fields.annotation_field(GPU_MODEL), str(error)) from None


def _shared_in_pod(reader: Reader) -> bool:
    text = reader.annotations.get(SHARING, "container")
    if text not in WAYS:
        raise RequestError(
            fields.annotation_field(SHARING),
            f"{text!r} is not a way of sharing",
            'write "container" (each container has a slice of its own) or "pod" (they hold one together)',
        )
    return text == "pod"
