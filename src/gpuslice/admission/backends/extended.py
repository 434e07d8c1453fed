"""Slices as slots: a count of an extended resource that the node agent's device plugin advertises, so many on each GPU.

Slots are all alike, so this backend can ask for a part of some GPU and for whole GPUs, but not for a part of
several, for one model, or for one slice in two containers. MIG partitions stay with the device plugin that already
offers them.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from gpuslice.admission.granting import NotAllowedError
from gpuslice.model import gpus
from gpuslice.model.devices import mig_resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.admission.context import Context
    from gpuslice.admission.granting import Grant
    from gpuslice.admission.patching import PodEdit


def write(grants: Sequence[Grant], edit: PodEdit, context: Context, target: str, *, whole_as_slots: bool) -> list[str]:
    """Puts the slots in the place of what was asked, and returns what the user should know.

    `whole_as_slots`: whole GPUs would be read as a dialect when the pod is reviewed again.
    """
    warnings = []
    for given in grants:
        if given.slice.shared_in_pod:
            raise _not_possible(given, "slots cannot be shared by containers")
        if given.slice.gpu_model is not None:
            raise _not_possible(given, f"slots are of any GPU, not of {gpus.with_article(given.slice.gpu_model)}")
        if given.slice.choice is not None:
            raise _not_possible(given, "slots are of any GPU")
        resource, count = _resource(given, context, target, whole_as_slots=whole_as_slots)
        change = edit.container(given.reading.place)
        change.removed += [name for name in given.reading.asked.resources if name not in change.removed]
        change.added[resource] = change.added.get(resource, 0) + count
        if context.offered is not None and resource not in context.offered:
            warnings.append(
                f"no node offers {resource} at the moment, and the pod waits until one does; if none will, give such "
                "pods claims, by a policy with the backend dra"
            )
        memory = given.slice.memory
        if isinstance(memory, int) and any(size < memory for size in context.gpu_sizes):
            warnings.append(
                f"{given.reading.signs[0]}: some GPUs of the cluster have less memory than this, and slots are of any "
                "GPU; select the nodes, or use the backend dra"
            )
    return warnings


def _resource(given: Grant, context: Context, target: str, *, whole_as_slots: bool) -> tuple[str, int]:
    wanted = given.slice
    if wanted.mig_profile is not None:
        return mig_resource(wanted.mig_profile), wanted.devices
    if wanted.whole and not whole_as_slots:
        return context.settings.whole_resource, wanted.devices
    if wanted.devices > 1:
        raise _not_possible(given, "slots cannot be spread over several GPUs")
    if wanted.slots is not None:
        return target, wanted.slots
    share = max(_memory_share(given, context), Fraction(wanted.cores, 100))
    return target, math.ceil(share * context.settings.slots_per_gpu)


def _memory_share(given: Grant, context: Context) -> Fraction:
    """Of the smallest GPU that has so much: on a larger one, as many slots are more memory and never less."""
    memory = given.slice.memory
    if isinstance(memory, Fraction):
        return memory
    return Fraction(memory, min(size for size in context.gpu_sizes if size >= memory))


def _not_possible(given: Grant, reason: str) -> NotAllowedError:
    return NotAllowedError(
        f"{given.reading.signs[0]}: the backend extended cannot give {given.slice.describe()}: {reason}; "
        "use the backend dra"
    )
