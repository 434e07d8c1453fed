"""Reading a container's resources and a pod's annotations, with complaints that name the field."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.model import kubernetes_quantities
from gpuslice.model.requests import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.dialects.asking import Reader
    from gpuslice.model.pods import Place

_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_DECIMAL: Final = re.compile(r"[0-9]{0,9}(\.[0-9]{1,18})?", re.ASCII)
_RATIO: Final = re.compile(r"([0-9]{1,9})\s*/\s*([0-9]{1,9})", re.ASCII)


def annotation_field(name: str) -> str:
    return f"metadata.annotations[{name}]"


def resource_field(place: Place, name: str) -> str:
    """Where the resource stands: in the limits, if it is in both."""
    part = "limits" if name in place.limits or name not in place.requests else "requests"
    return f"{place.field}.resources.{part}[{name}]"


def asked(place: Place, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the resources that the container asks for. Zero asks for nothing; nonsense is somebody's wish."""
    limits, requests = place.limits, place.requests
    found = [name for name in names if name in limits or name in requests]
    return tuple([name for name in found if _is_asked(place, name)]) if found else ()


def read_resource(place: Place, name: str) -> int:
    """The amount, 0 if the container does not ask for it."""
    limit, request = place.limits.get(name), place.requests.get(name)
    value = limit if limit is not None else request
    if value is None:
        return 0
    field = resource_field(place, name)
    try:
        amount = kubernetes_quantities.parse_whole(value)
        if request is not None and kubernetes_quantities.parse_whole(request) != amount:
            raise RequestError(
                field,
                f"is {value}, but {place.field}.resources.requests[{name}] is {request}",
                "Kubernetes wants both to be the same",
            )
    except ValueError as error:
        raise RequestError(field, str(error), "write for example 1") from None
    return amount


def read_number(reader: Reader, name: str, remedy: str = 'write for example "2"') -> int | None:
    """An annotation that must be a positive whole number; None if the pod does not have it."""
    text = reader.annotations.get(name)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None or int(text) == 0:
        raise RequestError(annotation_field(name), f"{text!r} is not a positive whole number", remedy)
    return int(text)


def read_fraction(reader: Reader, name: str) -> Fraction | None:
    """An annotation such as "1/3" or "0.25", above 0 and at most 1; None if the pod does not have it."""
    text = reader.annotations.get(name)
    if text is None:
        return None
    fraction = _parse_fraction(text.strip())
    if fraction is None or not 0 < fraction <= 1:
        raise RequestError(
            annotation_field(name),
            f"{text!r} is not a part of a GPU above 0 and at most 1",
            'write for example "1/3" or "0.25"',
        )
    return fraction


def _parse_fraction(text: str) -> Fraction | None:
    if ratio := _RATIO.fullmatch(text):
        numerator, denominator = map(int, ratio.groups())
        return Fraction(numerator, denominator) if denominator else None
    return Fraction(text) if text and _DECIMAL.fullmatch(text) else None


def _is_asked(place: Place, name: str) -> bool:
    value = place.limits.get(name, place.requests.get(name))
    assert value is not None, "asked has looked"
    try:
        return kubernetes_quantities.parse_whole(value) != 0
    except ValueError:
        return True
