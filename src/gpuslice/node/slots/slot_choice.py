"""Slots: a GPU as so many equal devices of an extended resource, and which of them to give to one container. Pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.model import slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: What every `identity` begins with.
PREFIX: Final = "slots-"


@dataclass(frozen=True, slots=True)
class SlotResource:
    """An extended resource. A GPU that is given out whole has one slot."""

    name: str
    slots_per_gpu: int


def names(gpu_uuid: str, count: int) -> list[str]:
    """The slots of a GPU. Kubernetes allows 63 characters."""
    return [f"{gpu_uuid}-{number}" for number in range(count)]


def gpu_of(slot: str) -> str:
    """The GPU that the slot is of."""
    return slot.rpartition("-")[0]


def by_gpu(slots: Iterable[str]) -> dict[str, list[str]]:
    """The slots of each GPU, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for slot in sorted(slots, key=_order):
        found[gpu_of(slot)].append(slot)
    return dict(found)


def memory(count: int, slots_per_gpu: int, memory_bytes: int) -> int:
    """What so many slots are on a GPU with that much memory; all of them are all of it."""
    return slices.memory_on(memory_bytes, Fraction(count, slots_per_gpu)) if count < slots_per_gpu else memory_bytes


def prefer(available: Sequence[str], required: Sequence[str], size: int) -> list[str]:
    """So many slots, with those that are required: all on one GPU if any has so many, on the one that is fullest.

    What does not fit on one GPU takes the emptiest ones, so that it is on as few as possible.
    """
    chosen = sorted(required, key=_order)[:size]
    free = by_gpu(set(available) - set(chosen))
    begun = {gpu_of(slot) for slot in chosen}
    while len(chosen) < size and free:
        missing = size - len(chosen)
        fitting = [gpu for gpu, slots in free.items() if len(slots) >= missing]
        if fitting:
            gpu = min(fitting, key=lambda gpu: (gpu not in begun, len(free[gpu]), gpu))
        else:
            gpu = min(free, key=lambda gpu: (gpu not in begun, -len(free[gpu]), gpu))
        chosen += free.pop(gpu)[:missing]
    return chosen


def identity(resource: str, slots: Iterable[str]) -> str:
    """A name for this set of slots, the same at every start: the kubelet remembers what it was told of them."""
    return f"{PREFIX}{hashlib.sha256(' '.join([resource, *sorted(slots)]).encode()).hexdigest()[:16]}"


def _order(slot: str) -> tuple[str, int]:
    gpu, _, number = slot.rpartition("-")
    return gpu, int(number) if number.isdecimal() else 0
