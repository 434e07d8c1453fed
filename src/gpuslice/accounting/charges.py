"""What a slice is charged: parts of a GPU, in millionths. Pure, and integers only.

Together the slices of a GPU are never charged more than the GPU. Each has its weight, as its share says; where the
weights add up to more than the GPU (one slice has most of the memory, another most of the cores), all are charged less
in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Of one GPU.
GPU_PARTS: Final = 1_000_000
#: One GPU for an hour, in the unit of amounts: parts times milliseconds, which are billionths of a GPU-second.
GPU_HOUR: Final = GPU_PARTS * 3_600_000
GPU_MINUTE: Final = GPU_PARTS * 60_000


class ChargeBy(StrEnum):
    """What a slice's weight is made of."""

    MAXIMUM = "maximum"
    MEMORY = "memory"
    CORES = "cores"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Share:
    """What a slice has of its GPU, in parts. Without a limit of cores (None) it reserves none, and may use all."""

    memory: int
    cores: int | None = None


WHOLE_GPU: Final = Share(GPU_PARTS, GPU_PARTS)


def weigh(share: Share, by: ChargeBy) -> int:
    """What the slice would be charged if it were alone on its GPU."""
    if by is ChargeBy.WHOLE:
        return GPU_PARTS
    if by is ChargeBy.MEMORY:
        return share.memory
    if by is ChargeBy.CORES:
        return GPU_PARTS if share.cores is None else share.cores
    return max(share.memory, share.cores or 0)


def parts_of(amount: int, whole: int) -> int:
    """An amount of something of which the GPU has so much, as parts; rounded up, and never more than the GPU."""
    if whole <= 0:
        return GPU_PARTS
    return min(GPU_PARTS, -(-amount * GPU_PARTS // whole))


def apportion(weights: Sequence[int], most: int) -> list[int]:
    """The weights themselves if they add up to no more than `most`; else numbers in their proportion that add up to it
    exactly. What is left over by rounding goes to those that lost most by it, the first ones first.
    """
    total = sum(weights)
    if total <= most:
        return list(weights)
    given = [weight * most // total for weight in weights]
    left = most - sum(given)
    by_loss = sorted(range(len(weights)), key=lambda at: (-(weights[at] * most % total), at))
    for at in by_loss[:left]:
        given[at] += 1
    return given


def divide(parts: int, count: int) -> list[int]:
    """Equal shares that add up to the whole; the first ones have one part more where it does not come out even."""
    each, left = divmod(parts, count)
    return [each + (1 if at < left else 0) for at in range(count)]
