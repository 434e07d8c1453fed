"""CastSlice: `nvidia.com/gpu` on a pod that is annotated for optimization becomes slots of a shared GPU.

The number of slots is that of `castops.io/slice-ratio`, else the preset of `castops.io/workload-type`, else the
default; it does not depend on how many GPUs the container asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import fields
from gpuslice.dialects.asking import Asked, Reader
from gpuslice.model.requests import Request, RequestError
from gpuslice.model.slices import Slice

if TYPE_CHECKING:
    from gpuslice.model.pods import Place

NAME: Final = "castslice"


def applies(reader: Reader) -> bool:
    """Whether a plain GPU of this pod is read as castslice."""
    return reader.opted_in or annotated(reader)


def annotated(reader: Reader) -> bool:
    return reader.annotations.get(reader.settings.castslice_optimize) == "true"


def signs(place: Place, reader: Reader) -> tuple[str, ...]:
    if not applies(reader):
        return ()
    found = fields.asked(place, (reader.settings.whole_resource,))
    return tuple(fields.resource_field(place, name) for name in found)


def read(place: Place, reader: Reader) -> Asked:
    whole = reader.settings.whole_resource
    count = fields.read_resource(place, whole)  # nonsense is refused, whatever the annotations say
    slots = reader.once(_slots)
    warnings: tuple[str, ...] = ()
    if count > 1:
        field = fields.resource_field(place, whole)
        warnings = (f"{field}: asks for {count} GPUs and gets {Slice(slots=slots).describe()}, as it would for one",)
    return Asked(requests=(Request(slots=slots),), resources=(whole,), warnings=warnings)


def _slots(reader: Reader) -> int:
    settings = reader.settings
    workload = reader.annotations.get(settings.castslice_workload)
    if workload is not None and workload not in settings.castslice_presets:
        known = ", ".join(sorted(settings.castslice_presets)) or "none"
        raise RequestError(
            fields.annotation_field(settings.castslice_workload),
            f"{workload!r} is not a workload type",
            f"the known ones are {known}",
        )
    ratio = fields.read_number(reader, settings.castslice_ratio)
    if ratio is not None:
        return ratio
    return settings.castslice_presets[workload] if workload else settings.castslice_default_slots
