"""Reading a container's resources, with complaints that name the field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.model.requests import RequestError
from gpuslice.model.values import kubernetes_quantities

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.dialects.dialect import ResourceFamily
    from gpuslice.model.pods import Place


def annotation_field(name: str) -> str:
    return f"metadata.annotations[{name}]"


def resource_field(place: Place, name: str) -> str:
    """Where the resource stands: in the limits, if it is in both."""
    part = "limits" if name in place.limits or name not in place.requests else "requests"
    return f"{place.field}.resources.{part}[{name}]"


def asked(place: Place, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the resources that the container asks for. Zero asks for nothing; nonsense asks for something."""
    limits, requests = place.limits, place.requests
    found = [name for name in names if name in limits or name in requests]
    return tuple([name for name in found if _is_asked(place, name)]) if found else ()


def members(place: Place, family: ResourceFamily) -> tuple[str, ...]:
    """Those of the family that the container asks for."""
    names = {name for part in (place.limits, place.requests) for name in part if family.has(name)}
    return asked(place, sorted(names)) if names else ()


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


def _is_asked(place: Place, name: str) -> bool:
    value = place.limits.get(name, place.requests.get(name))
    assert value is not None, "asked has looked"
    try:
        return kubernetes_quantities.parse_whole(value) != 0
    except ValueError:
        return True
