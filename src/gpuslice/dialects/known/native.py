"""gpuslice's own dialect.

A container's limits say `gpuslice.io/memory` and `gpuslice.io/cores`. Or the pod's annotation
`gpuslice.io/fraction` gives a part of a GPU, memory and cores alike, to the containers that
`gpuslice.io/containers` names, else to the first. The annotations `gpuslice.io/gpu-model` and `gpuslice.io/sharing`
hold for all of the pod.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, PodField, Resource, TargetField
from gpuslice.model.requests import Request

if TYPE_CHECKING:
    from fractions import Fraction

    from gpuslice.dialects.pod_values import Said

MEMORY: Final = Resource("gpuslice.io/memory")
CORES: Final = Resource("gpuslice.io/cores", forms.Percent())
FRACTION: Final = PodField("gpuslice.io/fraction", forms.PartOfGpu(), asks=True)
GPU_MODEL: Final = PodField("gpuslice.io/gpu-model", forms.GpuModelName())
#: Whether each container has a slice of its own, or all hold one together.
SHARING: Final = PodField(
    "gpuslice.io/sharing",
    forms.OneOf(
        ("container", "pod"),
        "a way of sharing",
        'write "container" (each container has a slice of its own) or "pod" (they hold one together)',
    ),
)


def _read(said: Said) -> Asked:
    fraction = said.value(FRACTION)
    request = Request(
        memory_bytes=said.amount(MEMORY) or None,
        memory_fraction=fraction,
        cores=said.amount(CORES) or _cores_of(fraction),
        gpu_model=said.value(GPU_MODEL),
        shared_in_pod=said.value(SHARING) == "pod",
    )
    return Asked(requests=(request,), resources=tuple(said.amounts))


def _cores_of(fraction: Fraction | None) -> int | None:
    """Rounded down, so that three thirds fit; but a small part is still a part."""
    return None if fraction is None else max(1, math.floor(100 * fraction))


DIALECT: Final = Dialect(
    name="native",
    read=_read,
    prefixes=("gpuslice.io/",),
    resources=(MEMORY, CORES),
    fields=(FRACTION, GPU_MODEL, SHARING),
    target=TargetField("gpuslice.io/containers", forms.ListOfContainerNames()),
    exclusive=(Exclusive(first=MEMORY, second=FRACTION),),
)
