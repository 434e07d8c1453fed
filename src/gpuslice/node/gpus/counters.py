"""MIG's rules as counters, so that the scheduler never allocates what the hardware cannot place. Pure.

Each memory slice of a GPU is a counter of one, because a partition takes the slices of its placement and no others;
compute slices and engines are counted, because it takes so many of them, wherever they are. A profile of which fewer
instances are allowed than there are places for has a counter of its own.

The scheduler looks at every counter of every device of a node, again for each pod, so those that decide nothing are not
published (`decisive`): on all GPUs that we know, engines and compute slices never run out before the memory slices do.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.model.mig import MigPlacement, MigProfile

_MEMORY: Final = "memory-slice-"
_COMPUTE: Final = "compute-slices"
_ENGINES: Final = {
    "copy-engines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg-engines": "jpegs",
    "ofa-engines": "ofas",
}


def label(profile: str) -> str:
    """The profile's name as a part of Kubernetes names: `1g.5gb+me` is `1g-5gb-me`, `1g.5gb-me` is `1g-5gb-no-me`."""
    return profile.replace("-", "-no-").replace("+", "-").replace(".", "-").lower()


def whole(profiles: tuple[MigProfile, ...]) -> Counter[str]:
    """What a GPU has, from what the largest of its profiles take, or as many of a profile as there can be: of some GPUs
    (B200) no partition shows all the engines, each shows one of its own.
    """
    return _whole(profiles).copy()


@lru_cache(maxsize=64)  # of as many models, all GPUs of a node are asked about again and again
def _whole(profiles: tuple[MigProfile, ...]) -> Counter[str]:
    found: Counter[str] = Counter()
    for profile in profiles:
        for place in profile.placements:
            for name, value in taken(profile, place).items():
                most = value * profile.max_instances if name in _ENGINES else value
                found[name] = max(found[name], most)
        if _is_limited(profile):
            found[_limit(profile)] = profile.max_instances
    return found


def taken(profile: MigProfile, place: MigPlacement) -> Counter[str]:
    """What a partition takes of its GPU."""
    found = Counter({f"{_MEMORY}{number}": 1 for number in range(place.start, place.start + place.size)})
    found[_COMPUTE] = profile.compute_slices
    found |= Counter({name: getattr(profile, attribute) for name, attribute in _ENGINES.items()})
    if _is_limited(profile):
        found[_limit(profile)] = 1
    return found


def shared(profiles: tuple[MigProfile, ...]) -> Counter[str]:
    """What a GPU that is shared takes of itself: every memory slice, which leaves no place for a partition."""
    return Counter({name: value for name, value in whole(profiles).items() if name.startswith(_MEMORY)})


@lru_cache(maxsize=64)
def decisive(profiles: tuple[MigProfile, ...]) -> frozenset[str]:
    """The counters that say all that there is to say: the others cannot run out before these do."""
    sure = {name for name in whole(profiles) if name.startswith(_MEMORY)}
    sure |= {_limit(profile) for profile in profiles if _is_limited(profile)}
    doubtful = [(name, value) for name, value in whole(profiles).items() if name not in sure]
    return frozenset(sure | {name for name, value in doubtful if _most(profiles, name) > value})


def _most(profiles: tuple[MigProfile, ...], name: str) -> int:
    """What partitions can take of this in all, if only their places and the limits of their profiles are minded."""
    limits = tuple(profile.max_instances for profile in profiles)
    places = [(index, place) for index, profile in enumerate(profiles) for place in profile.placements]
    end = max((place.start for _, place in places), default=-1)

    @cache
    def from_slice(first: int, left: tuple[int, ...]) -> int:
        if first > end:
            return 0
        best = from_slice(first + 1, left)
        for index, place in places:
            if place.start == first and left[index]:
                remaining = (*left[:index], left[index] - 1, *left[index + 1 :])
                value = taken(profiles[index], place)[name]
                best = max(best, value + from_slice(first + place.size, remaining))
        return best

    return from_slice(0, limits)


def fits(wanted: Mapping[str, int], left: Mapping[str, int]) -> bool:
    """Whether that much is left."""
    return all(value <= left.get(name, 0) for name, value in wanted.items())


@lru_cache(maxsize=1024)
def in_order_of_preference(profile: MigProfile, profiles: tuple[MigProfile, ...]) -> tuple[MigPlacement, ...]:
    """The profile's places: first where it is least in the way of others, as the driver itself would choose."""
    others = [place for other in profiles for place in other.placements]
    return tuple(
        sorted(profile.placements, key=lambda place: (sum(place.overlaps(other) for other in others), place.start))
    )


def _is_limited(profile: MigProfile) -> bool:
    return profile.max_instances < len(profile.placements)


def _limit(profile: MigProfile) -> str:
    return f"{label(profile.name)}-instances"
