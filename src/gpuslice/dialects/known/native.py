"""gpuslice's own dialect.

A container's limits say `gpuslice.io/memory` and `gpuslice.io/cores`, and by `gpuslice.io/gpus` on how many GPUs; that
alone is so many whole ones. Or the pod's annotation `gpuslice.io/fraction` gives a part of a GPU, memory and cores
alike, to the containers that `gpuslice.io/containers` names, else to the first.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, PodField, Resource, TargetField
from gpuslice.model.requests import Request

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

MEMORY: Final = Resource("gpuslice.io/memory")
CORES: Final = Resource("gpuslice.io/cores", forms.Percent())
#: How many GPUs, each with the memory and the cores.
GPUS: Final = Resource("gpuslice.io/gpus")
FRACTION: Final = PodField("gpuslice.io/fraction", forms.PartOfGpu(), asks=True)


def _read(said: Said) -> Asked:
    fraction, memory = said.value(FRACTION), said.amount(MEMORY)
    cores, devices = said.amount(CORES) or _cores_of(fraction), said.amount(GPUS)
    if devices and not memory and not cores:
        fraction, cores = Fraction(1), 100
    request = Request(
        memory_bytes=memory or None,
        memory_fraction=fraction,
        cores=cores,
        devices=devices or 1,
    )
    return Asked(requests=(request,), resources=tuple(said.amounts))


def _cores_of(fraction: Fraction | None) -> int | None:
    """Rounded down, so that three thirds fit; but a small part is still a part."""
    return None if fraction is None else max(1, math.floor(100 * fraction))


DIALECT: Final = Dialect(
    name="native",
    read=_read,
    prefixes=("gpuslice.io/",),
    resources=(MEMORY, CORES, GPUS),
    fields=(FRACTION,),
    target=TargetField("gpuslice.io/containers", forms.ListOfContainerNames()),
    exclusive=(Exclusive(first=MEMORY, second=FRACTION),),
)
