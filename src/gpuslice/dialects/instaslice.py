"""InstaSlice, and NVIDIA's device plugin in its mixed strategy: `nvidia.com/mig-<profile>: n` is n MIG partitions.

A `+` cannot stand in a resource's name: the profile 1g.5gb+me is `nvidia.com/mig-1g.5gb.me`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import fields
from gpuslice.dialects.asking import Asked, Reader
from gpuslice.model.requests import Request, RequestError
from gpuslice.model.slices import known_mig_profiles

if TYPE_CHECKING:
    from gpuslice.model.pods import Place

NAME: Final = "instaslice"
PREFIX: Final = "nvidia.com/mig-"

_PROFILES: Final = {name.replace("+", "."): name for name in known_mig_profiles()}


def signs(place: Place, _reader: Reader) -> tuple[str, ...]:
    return tuple(fields.resource_field(place, name) for name in _resources(place))


def read(place: Place, _reader: Reader) -> Asked:
    resources = _resources(place)
    requests = tuple(
        Request(mig_profile=_profile(place, name), devices=fields.read_resource(place, name)) for name in resources
    )
    return Asked(requests=requests, resources=resources)


def resource_of(profile: str) -> str:
    """The extended resource that stands for a profile."""
    return PREFIX + profile.replace("+", ".")


def _resources(place: Place) -> tuple[str, ...]:
    if not any(name.startswith(PREFIX) for names in (place.limits, place.requests) for name in names):
        return ()
    return fields.asked(place, sorted(name for name in {*place.limits, *place.requests} if name.startswith(PREFIX)))


def _profile(place: Place, resource: str) -> str:
    profile = _PROFILES.get(resource.removeprefix(PREFIX).replace("+", "."))
    if profile is None:
        raise RequestError(
            fields.resource_field(place, resource),
            f"{resource.removeprefix(PREFIX)!r} is not a MIG profile",
            f"the known ones are {', '.join(_PROFILES)}",
        )
    return profile
