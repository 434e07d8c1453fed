"""Adds up what a container holds by claims: those that it is given, and those that it names itself.

A container can name every claim of its pod. Two claims can be shares of one GPU, so their memory and cores add up, as
their devices do. A claim that several containers name is shared by them: each of them can use all of it.

Claims that are not ours count by what they ask for (`other_claims`): nothing if they are not for GPUs. A ResourceClaim
that exists may have been made for another pod, so under a maximum no container may name one that is for a GPU; and
none that cannot be known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuslice.admission import pod_annotations
from gpuslice.admission.claims import claim_amounts, claim_templates
from gpuslice.admission.granting import not_allowed
from gpuslice.admission.pod_annotations import PREFIX
from gpuslice.model import gpus, slices
from gpuslice.model.values import kubernetes_quantities

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.admission.claims.claim_amounts import Amounts
    from gpuslice.admission.patching import PodEdit
    from gpuslice.admission.restrictions.other_claims import OtherClaims
    from gpuslice.model.pods import Place, PodClaim
    from gpuslice.model.policies import Rule


@dataclass(frozen=True, slots=True)
class HeldClaims:
    """The claims of GPUs that one container holds after the edit."""

    place: Place
    #: What each of them gives, by its name in the pod.
    amounts: dict[str, Amounts]

    @property
    def field(self) -> str:
        return f"{self.place.field}.resources.claims"


def held_by(place: Place, edit: PodEdit, ours: dict[str, str], others: OtherClaims, rule: Rule) -> HeldClaims:
    """`ours` are the pod's claims of ours after the edit, by their templates.

    Raises NotAllowedError if the container names a claim that cannot be counted.
    """
    held = HeldClaims(place, {})
    change = edit.containers.get(place.pointer)
    for name in (*(claim.name for claim in place.claims), *(change.claims if change else ())):
        if name in ours:
            held.amounts[name] = _read(held, name, ours[name], rule)
        elif (claim := others.by_name.get(name)) is not None:
            _count_other(held, claim, others.gpus(claim), rule)
    return held


def _count_other(held: HeldClaims, claim: PodClaim, gpus: int | None, rule: Rule) -> None:
    if gpus == 0:
        return
    existing, template = claim.resource_claim_name, claim.resource_claim_template_name
    if gpus is None:
        of = (
            f"the ResourceClaim {existing[:64]!r}"
            if existing is not None
            else f"of the template {(template or '')[:64]!r}"
        )
        reason = f"is {of}, of which gpuslice cannot know what it gives; create that before the pod"
    elif existing is not None:
        reason = (
            f"is the existing ResourceClaim {existing[:64]!r}, which can be a GPU of another pod and is not counted; "
            "have the claim made for this pod (resourceClaimTemplateName)"
        )
    else:
        held.amounts[claim.name] = claim_amounts.Amounts(gpus, None, 100)
        return
    raise not_allowed(held.field, rule, f"the claim {claim.name[:64]!r} {reason}, or ask for a GPU in a dialect")


def claims_of_pod(edit: PodEdit) -> dict[str, str]:
    """The claims of ours that the pod has after the edit, by their templates."""
    spec = edit.pod.spec
    present = (spec.resource_claims if spec else None) or ()
    named = {claim.name: claim.resource_claim_template_name or "" for claim in present}
    return {name: template for name, template in named.items() if template.startswith(PREFIX)} | edit.claims


def refuse_unnamed(places: Iterable[Place], claims: Iterable[str], edit: PodEdit, rule: Rule) -> None:
    """Raises NotAllowedError if the pod came with a claim of ours that no container names: the scheduler would keep its
    GPU for the pod, and no maximum of a container says how much that may be.
    """
    named = {claim.name for place in places for claim in place.claims}
    for claim in claims:
        if claim not in named and claim not in edit.claims:
            raise not_allowed(
                "spec.resourceClaims", rule, f"no container names the claim {claim[:64]!r}; leave it out of the pod"
            )


def check_model(place: Place, ours: dict[str, str], edit: PodEdit, rule: Rule) -> None:
    """Raises NotAllowedError if a claim that the pod came with can be of another GPU than the rule's. Its template's
    name does not say of which; a recipe does, and the controller makes no other template under that name.
    """
    if rule.gpu_model is None:
        return
    known = claim_templates.templates_in(edit.pod.annotations.get(pod_annotations.RECIPES, ""))
    for claim in [claim.name for claim in place.claims if claim.name in ours and claim.name not in edit.claims]:
        template = ours[claim]
        if template not in known or known[template].gpu_model != rule.gpu_model:
            raise not_allowed(
                f"{place.field}.resources.claims",
                rule,
                f"the claim {claim[:64]!r} is of the template {template[:64]!r}, which is not known to be of "
                f"{gpus.with_article(rule.gpu_model)}; ask in a dialect instead",
            )


def check(held: HeldClaims, beside: Amounts, rule: Rule, largest_gpu: int) -> None:
    """Raises NotAllowedError if the claims, and what the container holds `beside` them, are above the maximum."""
    most = rule.maximum
    if not held.amounts:
        return
    amounts, names = held.amounts.values(), ", ".join(held.amounts)
    if most.cores is not None and any(not each.cores for each in amounts):
        raise not_allowed(
            held.field, rule, f"{names} have no limit of cores; at most {most.cores}% are allowed, so ask in a dialect"
        )
    for total, allowed, show in (
        (beside.devices + sum(each.devices for each in amounts), most.devices, "{} devices".format),
        (_memory(beside, amounts, largest_gpu), _in_steps(most.memory), _show_memory),
        (beside.cores + sum(each.cores for each in amounts), most.cores, "{}% of a GPU's cores".format),
    ):
        if allowed is not None and total > allowed:
            raise not_allowed(
                held.field,
                rule,
                f"what the container holds comes to {show(total)} ({names}); the maximum is {show(allowed)}, so name "
                "fewer claims",
            )


def _read(held: HeldClaims, claim: str, template: str, rule: Rule) -> Amounts:
    found = claim_amounts.read(template)
    if found is None:
        raise not_allowed(
            held.field,
            rule,
            f"the claim {claim!r} is of the template {template[:64]!r}, whose name does not say what it gives; ask in "
            "a dialect instead",
        )
    return found


def _memory(beside: Amounts, amounts: Iterable[Amounts], largest_gpu: int) -> int:
    held = (beside, *amounts)
    return sum(largest_gpu if each.memory is None else each.memory for each in held)


def _in_steps(most: int | None) -> int | None:
    """A claim is rounded up to the step; one that asked for no more than the maximum is still within it."""
    return None if most is None else slices.memory_on(0, most)


def _show_memory(size: int) -> str:
    return f"{kubernetes_quantities.describe_bytes(size)} of GPU memory"
