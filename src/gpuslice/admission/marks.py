"""What admission writes on a pod, so that a person sees what happened to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuslice.dialects.asking import Reader
    from gpuslice.model.pods import Place, Pod
    from gpuslice.model.settings import Settings

SLICE: Final = "gpuslice.io/slice"
DIALECT: Final = "gpuslice.io/dialect"
POLICY: Final = "gpuslice.io/policy"
BACKEND: Final = "gpuslice.io/backend"

#: Claims that admission made, and templates too, are named so.
PREFIX: Final = "gpuslice-"


class Served:
    """Which containers an earlier call gave their slices.

    The marks alone prove nothing, anybody can write them: the container must also hold something that was given to it.
    """

    def __init__(self, pod: Pod, settings: Settings, target_resource: str) -> None:
        self._marked = DIALECT in pod.annotations
        self._resources = (target_resource, settings.whole_resource)
        self._claims = {
            claim.name
            for claim in (pod.spec.resource_claims if pod.spec else None) or ()
            if (claim.resource_claim_template_name or "").startswith(PREFIX)
        }

    def __call__(self, place: Place) -> bool:
        if not self._marked:
            return False
        if any(claim.name in self._claims for claim in place.claims):
            return True
        return any(name in place.limits for name in self._resources)


def merge_slices(reader: Reader, served: Served, given: Mapping[str, str]) -> str:
    """`main: 4Gi memory; helper: 2 slots`, keeping what an earlier call wrote of containers that it served."""
    earlier = dict(entry.split(": ", 1) for entry in reader.annotations.get(SLICE, "").split("; ") if ": " in entry)
    slices = {place.name: earlier[place.name] for place in reader.places if place.name in earlier and served(place)}
    slices |= given
    # In the pod's order, so that a second call writes the same.
    return "; ".join(f"{place.name}: {slices[place.name]}" for place in reader.places if place.name in slices)


def merge_names(reader: Reader, mark: str, names: set[str], known: Iterable[str]) -> str:
    """Several in one pod are listed (`hami, vcuda`)."""
    if mark not in reader.annotations:
        return ", ".join(sorted(names))
    earlier = set(reader.annotations[mark].split(", ")).intersection(known)
    return ", ".join(sorted(earlier | names))
