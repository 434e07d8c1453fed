"""Measurements that a noisy machine cannot fool.

Machines change their speed by half within a minute, and a variant that is measured seconds after another is compared
with another machine. So variants take turns within milliseconds: each turn is one short batch, and hundreds of turns
make a sample. Noise only ever adds time, so a low quantile of the sample counts; the spread beside it says how noisy
the machine was.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: The quantile that counts, and the one that the spread is measured to.
LOW: Final = 0.1
HIGH: Final = 0.9
_WARM_UP: Final = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """What the turns of one variant took."""

    values: Sequence[float]

    @property
    def low(self) -> float:
        return quantile(self.values, LOW)

    @property
    def spread(self) -> float:
        """How many times as long the slow turns took: 1 on a quiet machine."""
        return quantile(self.values, HIGH) / self.low if self.low else 1.0


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def take_turns(measures: Mapping[str, Callable[[], float]], turns: int) -> dict[str, Sample]:
    """One batch of each, again and again. The order changes, so that no variant always follows the same other."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    names = list(measures)
    gc.disable()
    try:
        for turn in range(-_WARM_UP, turns):
            for name in names:
                value = measures[name]()
                if turn >= 0:
                    found[name].append(value)
            names.append(names.pop(0))
    finally:
        gc.enable()
    return {name: Sample(values) for name, values in found.items()}
