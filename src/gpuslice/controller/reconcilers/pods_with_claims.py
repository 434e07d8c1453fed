"""Which claim templates the pods of the cluster need, and what each is made of."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from gpuslice.admission.claims import claim_recipes, claim_templates
from gpuslice.admission.pod_annotations import PREFIX, RECIPES
from gpuslice.kube.resources import Metadata

#: A pod that has ended makes no more claims.
_ENDED = ("Succeeded", "Failed")


class _Metadata(Metadata, frozen=True, gc=False, rename="camel"):
    deletion_timestamp: str | None = None


class _Claim(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_claim_template_name: str | None = None


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_claims: list[_Claim] | None = None


class _Status(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class PodWithClaims(msgspec.Struct, frozen=True, gc=False):
    """A pod, as far as its claims go."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


@dataclass(frozen=True, slots=True)
class NeededTemplates:
    """What is kept of a pod."""

    uid: str
    #: The names of templates, each with its recipe; an empty one if the pod has none that makes a template of the name.
    recipes: tuple[tuple[str, str], ...]

    def recipe(self, template: str) -> str:
        return dict(self.recipes).get(template, "")


def needed_templates(pod: PodWithClaims) -> NeededTemplates | None:
    """The templates of ours that it needs; None if it needs none."""
    if pod.status.phase in _ENDED or pod.metadata.deletion_timestamp is not None:
        return None
    named = (claim.resource_claim_template_name or "" for claim in pod.spec.resource_claims or ())
    # Admission lets no pod have more.
    names = list(dict.fromkeys(name for name in named if name.startswith(PREFIX)))[: claim_recipes.MOST]
    if not names:
        return None
    known = claim_templates.templates_in((pod.metadata.annotations or {}).get(RECIPES, ""))
    return NeededTemplates(
        pod.metadata.uid,
        tuple((known[name].name, known[name].recipe) if name in known else (name, "") for name in names),
    )
