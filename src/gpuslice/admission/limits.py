"""Holds what a container will have to the rule, no matter whether a user or admission wrote it.

A container can ask for slots and devices by their own names, in no dialect, and it can name every claim of its pod;
and a container that an earlier call served looks just like one that a user wrote so. Hence the check does not
ask who wrote it: it adds up what would leave admission, and refuses the pod if that is beyond the rule's limits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from gpuslice.admission import held_claims
from gpuslice.admission.claim_amounts import Amounts
from gpuslice.admission.granting import check_slots, not_allowed
from gpuslice.dialects import fields
from gpuslice.dialects.registry import CLASS_RESOURCES
from gpuslice.model import gpus, kubernetes_quantities, slices
from gpuslice.model.slices import Slice

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuslice.admission.context import Context
    from gpuslice.admission.patching import PodEdit
    from gpuslice.dialects.recognizing import Reading
    from gpuslice.model.pods import Place
    from gpuslice.model.policies import Rule


def check(places: Iterable[Place], readings: Sequence[Reading], edit: PodEdit, rule: Rule, context: Context) -> None:
    """Raises NotAllowedError if, after the edit, a container has what the rule does not allow."""
    if not rule.limits:
        return
    signs = {reading.place.pointer: reading.signs[0] for reading in readings}
    slot_resources = {context.settings.shared_resource, *context.policies.target_resources}
    claims, existing = held_claims.claims_of_pod(edit), held_claims.existing_claims(edit)
    for place in places:
        if existing:
            held_claims.refuse_existing(place, existing, rule)
        for name in fields.asked(place, CLASS_RESOURCES):
            raise not_allowed(
                fields.resource_field(place, name),
                rule,
                "asks for devices by the name of their class, which is all of each and no dialect; ask in a dialect",
            )
        held = _slots(place, edit, slot_resources)
        if held:
            field = signs.get(place.pointer) or fields.resource_field(place, min(held))
            _check_slots(field, sum(held.values()), rule, context)
        if claims:
            beside = _amounts(sum(held.values()), context)
            held_claims.check(held_claims.held_by(place, edit, claims), beside, rule, max(context.gpu_sizes))


def _slots(place: Place, edit: PodEdit, resources: set[str]) -> dict[str, int]:
    """The container's slots by resource: what it is given, else what it has already."""
    change = edit.containers.get(place.pointer)
    given = {name: count for name, count in change.added.items() if name in resources} if change else {}
    return given | {name: fields.read_resource(place, name) for name in fields.asked(place, resources - given.keys())}


def _check_slots(field: str, slots: int, rule: Rule, context: Context) -> None:
    """A slot is a part of a GPU, so every maximum says something about it."""
    check_slots(field, slots, rule)
    if rule.gpu_model is not None:
        raise not_allowed(field, rule, f"slots are of any GPU, but these pods get {gpus.with_article(rule.gpu_model)}")
    most, (devices, memory, cores) = rule.maximum, _amounts(slots, context)
    for amount, allowed, show in (
        (devices, most.devices, "{} devices".format),
        (cores, most.cores, "{}% of a GPU's cores".format),
        (memory or 0, most.memory, lambda size: f"{kubernetes_quantities.describe_bytes(size)} of GPU memory"),
    ):
        if allowed is not None and amount > allowed:
            raise not_allowed(
                field, rule, f"{Slice(slots=slots).describe()} can be {show(amount)}; the maximum is {show(allowed)}"
            )


def _amounts(slots: int, context: Context) -> Amounts:
    """At most what so many slots are."""
    devices = Fraction(slots, context.settings.slots_per_gpu)
    share = min(devices, Fraction(1))
    # The scheduler counts slots and does not see whose they are: it may be the largest GPU.
    memory = max(slices.memory_on(size, share) for size in context.gpu_sizes)
    return Amounts(math.ceil(devices), memory, math.ceil(100 * share))
