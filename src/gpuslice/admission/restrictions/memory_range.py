"""How much memory a slice can have: no less than a CUDA context needs, no more than a GPU has.

A size outside of that is a slip of the unit (`gpuslice.io/memory: 4` is four bytes, HAMi's `gpumem: 3Gi` three
pebibytes). The pod would fail at its first CUDA call, or wait for ever; so it is told, whatever dialect it asks in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import registry
from gpuslice.model import gpus, slices
from gpuslice.model.values import kubernetes_quantities

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.admission.context import Context
    from gpuslice.dialects.recognizing import Reading
    from gpuslice.model.slices import Slice

_MIB: Final = 1024**2
#: Contexts take 200 to 600 MiB on the GPUs of today, and on small ones with old drivers a third of that. In less than
#: this no program runs, so no size that works is refused.
SMALLEST: Final = 64 * _MIB
_TOO_LITTLE: Final = f"less than any CUDA context needs ({SMALLEST // _MIB}Mi)"
_LARGEST_KNOWN: Final = max(gpus.PRESETS.values(), key=lambda model: model.memory_bytes)
_UNITS: Final = {_MIB: "in MiB", 1024 * _MIB: "in GiB"}


def complaint(reading: Reading, given: Slice, context: Context) -> str | None:
    """Why no GPU could give what was asked, with the field and the range; None if one could."""
    memory = given.memory
    if given.mig_profile is not None or given.slots is not None or not isinstance(memory, int):
        return None
    most, whose = _largest(given.gpu_model, context)
    if SMALLEST <= memory <= most:
        return None
    asked = kubernetes_quantities.describe_bytes(memory)
    reason = _TOO_LITTLE if memory < SMALLEST else f"more than {whose} has"
    field = next((sign for sign in reading.signs if "mem" in sign), reading.signs[0])
    unit = registry.BY_NAME[reading.dialect].memory_unit
    in_bytes = unit if isinstance(unit, int) else unit(context.settings)
    return f"{field}: asks for {asked} of GPU memory, {reason}; {_range(most, in_bytes)}"


def large_enough(sizes: Iterable[int], given: Slice) -> list[int]:
    """Of the GPU sizes those on which a part of the GPU is not too little."""
    return [size for size in sizes if slices.memory_on(size, given.memory) >= SMALLEST]


def complaint_of_part(reading: Reading, given: Slice) -> str:
    """Why a part is too little on every GPU."""
    part = slices.describe_memory(given.memory)
    return f"{reading.signs[0]}: asks for {part} memory, on every GPU {_TOO_LITTLE}; ask for more"


def _largest(model: str | None, context: Context) -> tuple[int, str]:
    """The most memory that a GPU has which the slice may be on, and which GPU that is. A model that is named may come
    with a node that an autoscaler will add.
    """
    if model is not None:
        known = gpus.PRESETS.get(model)
        size = known.memory_bytes if known else max(_LARGEST_KNOWN.memory_bytes, *context.gpu_sizes)
        return size, gpus.with_article(model)
    if context.knows_gpu_sizes:
        return max(context.gpu_sizes), "the largest GPU of the cluster"
    return _LARGEST_KNOWN.memory_bytes, f"the largest known GPU ({_LARGEST_KNOWN.name})"


def _range(most: int, unit: int) -> str:
    """In the unit of the field."""
    if unit == 1:
        return f"write {_short(SMALLEST)} to {_short(most)}"
    named = _UNITS.get(unit) or f"in units of {_short(unit)}"
    return f"it is {named}: write {-(-SMALLEST // unit)} to {most // unit}"


def _short(size: int) -> str:
    return kubernetes_quantities.format_bytes(size)
