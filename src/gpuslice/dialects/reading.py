"""Finds which dialect each container speaks, and refuses those that speak two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.dialects import castslice, fields, hami
from gpuslice.dialects.registry import DIALECTS
from gpuslice.model.requests import RequestError

if TYPE_CHECKING:
    from gpuslice.dialects.asking import Asked, Dialect, Reader
    from gpuslice.model.pods import Place

#: A GPU asked of the device plugin, in no dialect.
_PLAIN: Final = "a whole GPU"


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What one container asks for."""

    place: Place
    dialect: str
    #: The fields that say so.
    signs: tuple[str, ...]
    asked: Asked


def read_pod(reader: Reader) -> list[Reading]:
    """What each container asks for, in the order in which they start."""
    readings = []
    for place in reader.places:
        found = _speaks(place, reader)
        if found is not None:
            dialect, signs = found
            readings.append(Reading(place, dialect.NAME, signs, dialect.read(place, reader)))
    return readings


def _speaks(place: Place, reader: Reader) -> tuple[Dialect, tuple[str, ...]] | None:
    """The one dialect that the container speaks, and the fields that show it."""
    found = [(dialect, signs) for dialect in DIALECTS if (signs := dialect.signs(place, reader))]
    if not found:
        return None
    # HAMi counts its shares in nvidia.com/gpu: only a pod's own annotation makes that CastSlice's as well.
    if len(found) > 1 and found[0][0].NAME == castslice.NAME and not castslice.annotated(reader):
        found = found[1:] if found[1][0].NAME == hami.NAME else found
    dialect, signs = found[0]
    if len(found) > 1:
        other, other_signs = found[1]
        raise _two_ways(place, dialect.NAME, signs[0], other.NAME, other_signs[0])
    if dialect.NAME not in (castslice.NAME, hami.NAME):
        for name in fields.asked(place, (reader.settings.whole_resource,)):
            raise _two_ways(place, dialect.NAME, signs[0], _PLAIN, fields.resource_field(place, name))
    for claim in place.claims:
        raise _two_ways(
            place, dialect.NAME, signs[0], f"the claim {claim.name!r}", f"{place.field}.resources.claims[0]"
        )
    return dialect, signs


def _two_ways(place: Place, first: str, sign: str, second: str, other_sign: str) -> RequestError:
    return RequestError(
        sign,
        f"container {place.name!r} asks for a GPU in two ways: {first} here, and {second} by {other_sign}",
        "keep one of them",
    )
