"""What admission writes on a pod: for people, who see what happened to it, and for the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuslice.dialects import registry
from gpuslice.model.devices import CLAIM_PREFIX
from gpuslice.model.values import written_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpuslice.dialects.dialect import PodField
    from gpuslice.dialects.pod_values import Reader
    from gpuslice.model.pods import Place

SLICE: Final = written_names.SLICE
DIALECT: Final = written_names.DIALECT
POLICY: Final = written_names.POLICY
BACKEND: Final = written_names.BACKEND
#: What the controller makes the pod's claim templates from (`claim_recipes`).
RECIPES: Final = written_names.RECIPES

#: All of them: annotations.
NAMES: Final = written_names.ANNOTATIONS

#: A label, so that such pods can be selected: by people, and by the API server without reading the pod.
SLICED: Final = written_names.SLICED

#: Claims that admission made, and templates too, are named so.
PREFIX: Final = CLAIM_PREFIX


class Served:
    """Which containers an earlier call gave their slices, so that annotations do not ask for them once more.

    A user can write these annotations himself, and name slots and claims besides. That gains nothing: a pod without
    the annotations could hold the same, and `limits` counts it alike.
    """

    def __init__(self, reader: Reader, target_resource: str) -> None:
        spec = reader.pod.spec
        self._places = reader.places
        self._dialects = frozenset(reader.annotations.get(DIALECT, "").split(", "))
        self._annotated = DIALECT in reader.annotations
        self._resources = (target_resource, reader.settings.whole_resource)
        self._claims = {
            claim.name
            for claim in (spec.resource_claims if spec else None) or ()
            if (claim.resource_claim_template_name or "").startswith(PREFIX)
        }

    def __call__(self, place: Place) -> bool:
        if not self._annotated:
            return False
        if any(claim.name in self._claims for claim in place.claims):
            return True
        return any(name in place.limits for name in self._resources)

    def fields(self) -> Iterator[PodField[Any]]:
        """The fields that asked for what was given: perhaps to a container that is not the first any more, because
        another webhook has put one before it.
        """
        asked = [fields for dialect, fields in registry.ASKING.items() if dialect in self._dialects]
        if asked and any(map(self, self._places)):
            for fields in asked:
                yield from fields


def merge_slices(reader: Reader, served: Served, given: Mapping[str, str]) -> str:
    """`main: 4Gi memory; helper: 2 slots`, keeping what an earlier call wrote of containers that it served."""
    earlier = dict(entry.split(": ", 1) for entry in reader.annotations.get(SLICE, "").split("; ") if ": " in entry)
    slices = {place.name: earlier[place.name] for place in reader.places if place.name in earlier and served(place)}
    slices |= given
    # In the pod's order, so that a second call writes the same.
    return "; ".join(f"{place.name}: {slices[place.name]}" for place in reader.places if place.name in slices)


def merge_names(reader: Reader, annotation: str, names: set[str], known: Iterable[str]) -> str:
    """Several in one pod are listed (`hami, vcuda`)."""
    if annotation not in reader.annotations:
        return ", ".join(sorted(names))
    earlier = set(reader.annotations[annotation].split(", ")).intersection(known)
    return ", ".join(sorted(earlier | names))
