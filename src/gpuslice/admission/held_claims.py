"""Adds up what a container holds by claims: those that it is given, and those that it names itself.

A container can name every claim of its pod. Two claims can be shares of one GPU, so their memory and cores add up, as
their devices do. A claim that several containers name is shared by them: each of them can use all of it.

A ResourceClaim that exists may have been made for another pod, and what it gives is not in this one: under a maximum no
container may name one. Claims of templates that are not ours are not counted. docs/policies.md says what keeps tenants
from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuslice.admission import claim_amounts
from gpuslice.admission.granting import not_allowed
from gpuslice.admission.pod_annotations import PREFIX
from gpuslice.model import kubernetes_quantities, slices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.admission.claim_amounts import Amounts
    from gpuslice.admission.patching import PodEdit
    from gpuslice.model.pods import Place
    from gpuslice.model.policies import Rule


@dataclass(frozen=True, slots=True)
class HeldClaims:
    """The claims of ours that one container holds after the edit."""

    place: Place
    #: Claim name -> template name.
    templates: dict[str, str]

    @property
    def field(self) -> str:
        return f"{self.place.field}.resources.claims"


def held_by(place: Place, edit: PodEdit, in_pod: dict[str, str]) -> HeldClaims:
    """`in_pod` are the pod's claims after the edit, by their templates."""
    change = edit.containers.get(place.pointer)
    names = [claim.name for claim in place.claims] + (change.claims if change else [])
    return HeldClaims(place, {name: in_pod[name] for name in names if name in in_pod})


def claims_of_pod(edit: PodEdit) -> dict[str, str]:
    """The claims of ours that the pod has after the edit, by their templates."""
    spec = edit.pod.spec
    present = (spec.resource_claims if spec else None) or ()
    named = {claim.name: claim.resource_claim_template_name or "" for claim in present}
    return {name: template for name, template in named.items() if template.startswith(PREFIX)} | edit.claims


def existing_claims(edit: PodEdit) -> dict[str, str]:
    """The claims of the pod that exist already: by their names in the pod, the names of the ResourceClaims."""
    spec = edit.pod.spec
    present = (spec.resource_claims if spec else None) or ()
    return {claim.name: claim.resource_claim_name for claim in present if claim.resource_claim_name is not None}


def refuse_existing(place: Place, existing: dict[str, str], rule: Rule) -> None:
    """Raises NotAllowedError if the container names a claim that exists, and the rule limits what claims give."""
    most = rule.maximum
    if (most.memory, most.cores, most.devices) == (None, None, None):
        return
    for claim in place.claims:
        if (name := existing.get(claim.name)) is not None:
            raise not_allowed(
                f"{place.field}.resources.claims",
                rule,
                f"the claim {claim.name[:64]!r} is the existing ResourceClaim {name[:64]!r}, which can be a GPU of "
                "another pod and is not counted; have the claim made for this pod (resourceClaimTemplateName), or ask "
                "for a GPU in a dialect",
            )


def check(held: HeldClaims, beside: Amounts, rule: Rule, largest_gpu: int) -> None:
    """Raises NotAllowedError if the claims, and what the container holds `beside` them, are above the maximum."""
    most = rule.maximum
    if not held.templates or (most.memory, most.cores, most.devices) == (None, None, None):
        return
    amounts = [_read(held, name, rule) for name in held.templates]
    names = ", ".join(held.templates)
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


def _read(held: HeldClaims, claim: str, rule: Rule) -> Amounts:
    template = held.templates[claim]
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
