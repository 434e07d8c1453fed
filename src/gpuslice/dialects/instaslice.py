"""InstaSlice, and NVIDIA's device plugin in its mixed strategy: `nvidia.com/mig-<profile>: n` is n MIG partitions.

A `+` cannot stand in a resource's name: the profile 1g.5gb+me is `nvidia.com/mig-1g.5gb.me`. Profiles of GPUs that we
have no table of are taken by their form, with a warning: their nodes may offer them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import fields
from gpuslice.dialects.asking import Asked, Reader
from gpuslice.model.requests import Request, RequestError
from gpuslice.model.slices import known_mig_profiles

if TYPE_CHECKING:
    from gpuslice.model.pods import Place

NAME: Final = "instaslice"
PREFIX: Final = "nvidia.com/mig-"

#: Compute slices, memory and what sets it apart: 1g.5gb, 1g.5gb.me.
FORM: Final = "([12347])g[.]([1-9][0-9]{0,2})gb([.](me|gfx|me[.]all))?"

_FORM: Final = re.compile(FORM, re.ASCII)
_PROFILES: Final = {name.replace("+", "."): name for name in known_mig_profiles()}


def signs(place: Place, _reader: Reader) -> tuple[str, ...]:
    return tuple(fields.resource_field(place, name) for name in _resources(place))


def read(place: Place, _reader: Reader) -> Asked:
    resources = _resources(place)
    requests = tuple(
        Request(mig_profile=_profile(place, name), devices=fields.read_resource(place, name)) for name in resources
    )
    warnings = tuple(
        f"{fields.resource_field(place, name)}: no GPU that gpuslice knows has the MIG profile {request.mig_profile}; "
        "the pod waits for a node that offers it"
        for name, request in zip(resources, requests, strict=True)
        if request.mig_profile not in _PROFILES.values()
    )
    return Asked(requests=requests, resources=resources, warnings=warnings)


def resource_of(profile: str) -> str:
    """The extended resource that stands for a profile."""
    return PREFIX + profile.replace("+", ".")


def _resources(place: Place) -> tuple[str, ...]:
    if not any(name.startswith(PREFIX) for names in (place.limits, place.requests) for name in names):
        return ()
    return fields.asked(place, sorted(name for name in {*place.limits, *place.requests} if name.startswith(PREFIX)))


def _profile(place: Place, resource: str) -> str:
    written = resource.removeprefix(PREFIX).replace("+", ".")
    if profile := _PROFILES.get(written):
        return profile
    if (found := _FORM.fullmatch(written)) is None:
        raise RequestError(
            fields.resource_field(place, resource),
            f"{resource.removeprefix(PREFIX)!r} is not a MIG profile",
            f"the known ones are {', '.join(_PROFILES)}",
        )
    compute, memory, _, extension = found.groups()
    return f"{compute}g.{memory}gb" + (f"+{extension}" if extension else "")
