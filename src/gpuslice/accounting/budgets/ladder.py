"""What follows from what is left: a pure function, the same for status, admission, eviction, console and dry run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from gpuslice.accounting.windows import HalfLife, Rolling
from gpuslice.model.values import durations

if TYPE_CHECKING:
    from gpuslice.accounting.budgets.balance import Balance
    from gpuslice.accounting.budgets.budget import Budget
    from gpuslice.accounting.windows import Window


class Step(IntEnum):
    """Each has what those before it have."""

    WITHIN = 0
    WARN = 1
    LOWER = 2
    GATE = 3
    EVICT = 4

    @property
    def word(self) -> str:
        return _WORDS[self]


_WORDS = {
    Step.WITHIN: "Within",
    Step.WARN: "Warned",
    Step.LOWER: "LowPriority",
    Step.GATE: "Gated",
    Step.EVICT: "Evictable",
}
#: As a status has them.
STEPS = {word: step for step, word in _WORDS.items()}


@dataclass(frozen=True, slots=True)
class Verdict:
    step: Step
    reason: str
    #: The highest of the percentages to warn at that is reached.
    warned: int | None = None


def exhausted_at(balance: Balance, rate: int, window: Window, now: int) -> int | None:
    """When nothing will be left if all goes on as now: `rate` is in the budget's units per hour. None: never, in this
    window.
    """
    if balance.left <= 0:
        return now
    if rate <= 0:
        return None
    hour = 3_600_000
    if isinstance(window, HalfLife):
        # At this rate the use tends to a level; it is reached where the limit is below that.
        level = rate / hour * window.length / math.log(2)
        if level <= balance.limit:
            return None
        return now + round(window.length * math.log2((level - balance.used) / (level - balance.limit)))
    if isinstance(window, Rolling) and rate * window.length <= balance.limit * hour:
        return None
    at = now + -(-balance.left * hour // rate)
    return at if balance.window_end is None or at < balance.window_end else None


def judge(budget: Budget, balance: Balance, over_since: int | None, exhausted: int | None, now: int) -> Verdict:
    """`over_since`: since when so much is used that pods may be evicted."""
    ladder, percent = budget.ladder, balance.percent
    warned = max((each for each in ladder.warn if percent >= each), default=None)
    used = f"{budget.show(balance.used)} of {budget.show(balance.limit)} are used ({percent} %)"
    evict = ladder.evict
    if evict is not None and percent >= evict.at:
        over = now - (now if over_since is None else over_since)
        if over >= evict.grace:
            return Verdict(Step.EVICT, f"{used}: running pods make room for pods within budget", warned)
        soon = durations.format_seconds((evict.grace - over) / 1000)
        used = f"{used}; in {soon} running pods make room for pods within budget"
    if ladder.gate is not None and percent >= ladder.gate:
        return Verdict(Step.GATE, f"{used}: new pods wait", warned)
    if ladder.lower is not None and percent >= ladder.lower:
        return Verdict(Step.LOWER, f"{used}: new pods get the low priority", warned)
    if warned is not None:
        return Verdict(Step.WARN, f"{used}, which is above {warned} %{_forecast(exhausted, now)}", warned)
    return Verdict(Step.WITHIN, f"{used}{_forecast(exhausted, now)}")


def is_over(budget: Budget, balance: Balance) -> bool:
    """Whether the time of grace runs."""
    return budget.ladder.evict is not None and balance.percent >= budget.ladder.evict.at


def _forecast(exhausted: int | None, now: int) -> str:
    if exhausted is None or exhausted <= now:
        return ""
    return f"; at the rate of now the rest lasts for {durations.format_seconds((exhausted - now) / 1000)}"
