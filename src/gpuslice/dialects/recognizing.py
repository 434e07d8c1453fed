"""Finds which dialect each container speaks, and refuses those that speak two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.dialects import common_fields, fields, registry
from gpuslice.dialects.dialect import WholeGpus
from gpuslice.dialects.pod_values import Said
from gpuslice.model.requests import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.dialects.dialect import Asked, Dialect
    from gpuslice.dialects.pod_values import Reader
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
    asking = _asking(reader)
    readings = []
    for place in reader.places:
        found = _signs(place, reader, asking)
        if found:
            dialect = _the_one(found, place, reader)
            readings.append(Reading(place, dialect.name, found[dialect.name], _read(dialect, place, reader)))
    return readings


def asks_by_whole_gpus(reader: Reader) -> bool:
    """Whether whole GPUs of this pod are read as a dialect."""
    if reader.opted_in:
        return bool(registry.BY_WHOLE_GPUS)
    return any(map(reader.switched_on, registry.BY_WHOLE_GPUS))


def _asking(reader: Reader) -> list[tuple[Dialect, tuple[str, ...]]]:
    """The dialects that the pod speaks in annotations and labels, and the fields that show it."""
    found = []
    if registry.asks_by_fields(reader.annotations, reader.labels):
        for name, asking in registry.ASKING.items():
            signs = tuple(field.path_in(reader.settings) for field in asking if reader.text(field) is not None)
            if signs:
                found.append((registry.BY_NAME[name], signs))
    return found


def _signs(place: Place, reader: Reader, asking: list[tuple[Dialect, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    """The dialects that the container speaks, and the fields that show it."""
    found: dict[str, tuple[str, ...]] = {}
    for dialect in _candidates(place, reader):
        names = fields.asked(place, _names(dialect, place, reader))
        if names:
            found[dialect.name] = tuple([fields.resource_field(place, name) for name in names])
    for dialect, signs in asking:
        if place.name in reader.targets(dialect):
            found[dialect.name] = found.get(dialect.name, ()) + signs
    return found


def _candidates(place: Place, reader: Reader) -> dict[Dialect, None]:
    """The dialects that have a sign among the container's resources. It may be 0, which asks for nothing."""
    found: dict[Dialect, None] = {}
    for part in (place.limits, place.requests):
        for name in part:
            dialect = registry.BY_RESOURCE.get(name)
            if dialect is not None:
                found[dialect] = None
            elif name == reader.settings.whole_resource:
                for each in registry.BY_WHOLE_GPUS:
                    if reader.opted_in or reader.switched_on(each):
                        found[each] = None
            elif (of_family := registry.by_family(name)) is not None:
                found[of_family] = None
    return found


def _names(dialect: Dialect, place: Place, reader: Reader) -> tuple[str, ...]:
    """Of the resources that can show that the container speaks the dialect, in the order of its declaration."""
    if dialect.whole_gpus is WholeGpus.ASK:
        return (reader.settings.whole_resource,)
    family = () if dialect.family is None else fields.members(place, dialect.family)
    return (*registry.SIGNS[dialect.name], *family)


def _the_one(found: dict[str, tuple[str, ...]], place: Place, reader: Reader) -> Dialect:
    """The one dialect that the container speaks. RequestError says that it asks in two ways."""
    dialects = [registry.BY_NAME[name] for name in found]
    if len(dialects) > 1:
        dialects = _without_what_only_counts(dialects, reader)
    dialect = dialects[0]
    sign = found[dialect.name][0]
    if len(dialects) > 1:
        raise two_ways(place, dialect.name, sign, dialects[1].name, found[dialects[1].name][0])
    if dialect.whole_gpus is WholeGpus.CONTRADICT:
        for name in fields.asked(place, (reader.settings.whole_resource,)):
            raise two_ways(place, dialect.name, sign, _PLAIN, fields.resource_field(place, name))
    return dialect


def _without_what_only_counts(dialects: list[Dialect], reader: Reader) -> list[Dialect]:
    """Whole GPUs count shares where a dialect of the container says so. Only an annotation of the pod makes them ask
    in another dialect as well.
    """
    dialects = sorted(dialects, key=lambda each: each.name)
    if not any(dialect.whole_gpus is WholeGpus.COUNT for dialect in dialects):
        return dialects
    return [each for each in dialects if each.whole_gpus is not WholeGpus.ASK or reader.switched_on(each)]


def _read(dialect: Dialect, place: Place, reader: Reader) -> Asked:
    asked = common_fields.applied(dialect.read(Said(dialect, place, reader)), reader)
    if dialect.unkept and (unkept := tuple(_unkept(dialect, reader))):
        asked = msgspec.structs.replace(asked, unkept=unkept)
    if not dialect.unread or all(
        map(dialect.unread.isdisjoint, (place.limits, place.requests, reader.annotations, reader.labels))
    ):
        return asked
    paths = [
        *(each.path_in(reader.settings) for each in dialect.fields if each.unread and reader.text(each) is not None),
        *(
            fields.resource_field(place, each.name)
            for each in dialect.resources
            if each.unread and place.asks_by_name(each.name)
        ),
    ]
    warnings = (*asked.warnings, *(f"{path}: gpuslice does not read it" for path in paths))
    return msgspec.structs.replace(asked, warnings=warnings)


def _unkept(dialect: Dialect, reader: Reader) -> Iterator[str]:
    for field in dialect.unkept:
        text, unkept = reader.text(field), field.unkept
        if text is not None and unkept is not None and not unkept.keeps(text):
            yield f"{field.path_in(reader.settings)}: {text[:64]!r}: {unkept.reason}; {unkept.remedy}"


def two_ways(place: Place, first: str, sign: str, second: str, other_sign: str) -> RequestError:
    return RequestError(
        sign,
        f"container {place.name!r} asks for a GPU in two ways: {first} here, and {second} by {other_sign}",
        "keep one of them",
    )
