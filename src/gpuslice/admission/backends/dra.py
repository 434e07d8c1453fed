"""Slices as claims of the pod, from templates that the controller makes (`claim_templates`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.admission.claims import claim_recipes
from gpuslice.admission.claims.claim_templates import Template, template_for
from gpuslice.admission.granting import NotAllowedError
from gpuslice.admission.pod_annotations import PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.admission.granting import Grant
    from gpuslice.admission.patching import PodEdit
    from gpuslice.model.pods import Place

#: Of one pod. No node has so many devices, and a few bytes of pod must not become megabytes of patch.
_MAX_CLAIMS: Final = 512


def write(grants: Sequence[Grant], edit: PodEdit) -> list[Template]:
    """Puts the claims into the pod and returns the templates that they need."""
    claims = _Claims(edit)
    # An init container that ends before the others start can use their claims, so theirs come first.
    for given in sorted(grants, key=lambda given: given.reading.place.ends_before_others_start):
        place, change = given.reading.place, edit.container(given.reading.place)
        change.removed += [name for name in given.reading.asked.resources if name not in change.removed]
        change.claims += claims.names_for(given, place)
    return list(claims.templates.values())


class _Claims:
    """The claims of one pod, and who may use which."""

    def __init__(self, edit: PodEdit) -> None:
        self._edit = edit
        self.templates: dict[str, Template] = {}
        spec = edit.pod.spec
        self._taken = {claim.name for claim in (spec.resource_claims if spec else None) or ()}
        self._next = 0
        self._shared: tuple[Grant, list[str]] | None = None
        #: By template: what app containers hold, and what only init containers do. Both are free while those run.
        self._free_at_start: dict[str, list[str]] = {}

    def names_for(self, given: Grant, place: Place) -> list[str]:
        """The claims that the container uses for this grant."""
        if given.slice.shared_in_pod:
            return self._names_shared(given)
        template, count = self._template(given)
        if not place.ends_before_others_start:
            names = self._make(template, count)
            if not place.init:  # a sidecar runs beside the init containers after it
                self._free_at_start.setdefault(template.name, []).extend(names)
            return names
        free = self._free_at_start.setdefault(template.name, [])
        free += self._make(template, count - len(free))
        return free[:count]

    def _names_shared(self, given: Grant) -> list[str]:
        if self._shared is None:
            template, count = self._template(given)
            self._shared = (given, self._make(template, count))
        first, names = self._shared
        if first.slice != given.slice:
            raise NotAllowedError(
                f"{given.reading.signs[0]}: container {given.reading.place.name!r} asks for {given.slice.describe()}, "
                f"but {first.reading.place.name!r} for {first.slice.describe()}; to share one slice, ask for the same"
            )
        return names

    def _template(self, given: Grant) -> tuple[Template, int]:
        """The template, and how many claims of it: each MIG partition is a claim of its own."""
        template = template_for(given.slice, given.sizes)
        self.templates[template.name] = template
        if len(self.templates) > claim_recipes.MOST:
            raise NotAllowedError(
                f"spec: the pod asks for slices of more than {claim_recipes.MOST} kinds; ask for fewer different sizes"
            )
        return template, given.slice.devices if given.slice.mig_profile is not None else 1

    def _make(self, template: Template, count: int) -> list[str]:
        if len(self._edit.claims) + count > _MAX_CLAIMS:
            raise NotAllowedError(f"spec: the pod asks for more than {_MAX_CLAIMS} slices; ask for fewer")
        names: list[str] = []
        while len(names) < count:
            name = f"{PREFIX}{self._next}"
            self._next += 1
            if name not in self._taken:
                self._edit.claims[name] = template.name
                names.append(name)
        return names
