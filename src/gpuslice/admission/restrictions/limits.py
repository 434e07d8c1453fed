"""Holds what a container will have to the rule, no matter whether a user or admission wrote it.

A container can ask for GPUs and slots by their own names, in no dialect, and it can name every claim of its pod;
and a container that an earlier call served looks just like one that a user wrote so. Hence the check does not
ask who wrote it: it adds up what would leave admission, and refuses the pod if that is beyond the rule's limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.admission.claims.claim_amounts import Amounts
from gpuslice.admission.granting import check_slots, not_allowed
from gpuslice.admission.restrictions import held_claims
from gpuslice.dialects import fields
from gpuslice.dialects.registry import CLASS_RESOURCES
from gpuslice.model import gpus
from gpuslice.model.values import kubernetes_quantities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.admission.context import Context
    from gpuslice.admission.patching import PodEdit
    from gpuslice.admission.restrictions.named_gpus import HeldNames, NamedGpus
    from gpuslice.admission.restrictions.other_claims import OtherClaims
    from gpuslice.model.pods import Place
    from gpuslice.model.policies import Rule


def check(
    places: Sequence[Place], named: HeldNames, others: OtherClaims, edit: PodEdit, rule: Rule, context: Context
) -> None:
    """Raises NotAllowedError if, after the edit, a container has what the rule does not allow."""
    claims = held_claims.claims_of_pod(edit)
    if claims:
        held_claims.refuse_unnamed(places, claims, edit, rule)
    most = rule.maximum
    counts_claims = (most.memory, most.cores, most.devices) != (None, None, None)
    for place in places:
        for name in fields.asked(place, CLASS_RESOURCES):
            raise not_allowed(
                fields.resource_field(place, name),
                rule,
                "asks for devices by the name of their class, which is all of each and no dialect; ask in a dialect",
            )
        held = named.of(place)
        beside = _together(held, max(context.gpu_sizes))
        if held:
            _check_names(held, beside, rule)
        if claims:
            held_claims.check_model(place, claims, edit, rule)
        if counts_claims and (claims or others.by_name):
            by_claims = held_claims.held_by(place, edit, claims, others, rule)
            held_claims.check(by_claims, beside, rule, max(context.gpu_sizes))


def _together(held: list[NamedGpus], largest_gpu: int) -> Amounts:
    """At most what they are. Shares of several names can be on one GPU."""
    devices = memory = cores = 0
    for each in held:
        devices += each.amounts.devices
        memory += largest_gpu if each.amounts.memory is None else each.amounts.memory
        cores += each.amounts.cores
    return Amounts(devices, memory, cores)


def _check_names(held: list[NamedGpus], together: Amounts, rule: Rule) -> None:
    """Every name is of a GPU or of a part of one, so every maximum says something about it."""
    field, text = held[0].field, " and ".join(each.text for each in held)
    slots = sum(each.slots or 0 for each in held)
    for each in held:
        if each.in_slots:
            check_slots(each.field, slots, rule)
    if rule.gpu_model is not None:
        raise not_allowed(
            field, rule, f"{text} can be of any GPU, but these pods get {gpus.with_article(rule.gpu_model)}"
        )
    most = rule.maximum
    for amount, allowed, show in (
        (slots, most.slots, "{} slots".format),
        (together.devices, most.devices, "{} devices".format),
        (together.cores, most.cores, "{}% of a GPU's cores".format),
        (together.memory or 0, most.memory, lambda size: f"{kubernetes_quantities.describe_bytes(size)} of GPU memory"),
    ):
        if allowed is not None and amount > allowed:
            raise not_allowed(field, rule, f"{text} can be {show(amount)}; the maximum is {show(allowed)}")
