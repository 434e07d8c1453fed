"""What is left of a budget, and until when. Pure, but for the ledger that it asks.

The ledger knows what is closed; what goes on now comes beside it, as open uses. Both are taken at one moment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gpuslice.accounting.metering import HOUR_MS
from gpuslice.accounting.windows import Calendar, HalfLife, Rolling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuslice.accounting.budgets.budget import Budget

#: Amounts of GPU time by price.
Amounts = dict[int, int]


class UsageSource(Protocol):
    """What balances ask the ledger."""

    def totals(self, start: int, until: int) -> dict[str, Amounts]:
        """What each namespace was charged from `start` to `until`."""
        ...

    def hours(self, start: int, until: int) -> Iterable[tuple[str, int, int, int]]:
        """Namespace, price, full hour and amount."""
        ...


@dataclass(frozen=True, slots=True)
class OpenUse:
    """A charge that goes on, or is not in the ledger yet."""

    namespace: str
    price: int
    parts: int
    start: int
    until: int


@dataclass(frozen=True, slots=True)
class Credit:
    """What somebody gave a namespace by hand, in the budget's unit."""

    budget: str
    namespace: str
    amount: int
    at: int
    who: str = ""
    why: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Balance:
    """In the budget's unit."""

    #: What may be used in this window: the amount, with what is carried over, borrowed and credited.
    limit: int
    used: int
    window_start: int
    #: None for windows that do not end.
    window_end: int | None = None

    @property
    def left(self) -> int:
        return self.limit - self.used

    @property
    def percent(self) -> int:
        """Rounded down: 100 is all of it."""
        if self.limit <= 0:
            return 1000
        return self.used * 100 // self.limit


class Balances:
    """Works out balances, and remembers of closed windows what the next ones begin with."""

    def __init__(self, source: UsageSource) -> None:
        self._source = source
        #: By budget: what each namespace begins the window at that moment with.
        self._openings: dict[str, tuple[tuple[object, ...], int, dict[str, int]]] = {}
        #: By budget: what is left of uses before an hour, at that hour.
        self._decayed: dict[str, tuple[tuple[object, ...], int, dict[str, dict[int, float]]]] = {}

    def forget(self) -> None:
        """The ledger is another one, or was set back."""
        self._openings.clear()
        self._decayed.clear()

    def of(
        self,
        budget: Budget,
        namespaces: Iterable[str],
        open_uses: Sequence[OpenUse],
        credits_given: Sequence[Credit],
        now: int,
    ) -> dict[str, Balance]:
        """The balance of each namespace."""
        given = [each for each in credits_given if each.budget == budget.name and each.at <= now]
        window = budget.window
        if isinstance(window, Calendar):
            return self._calendar(budget, window, namespaces, open_uses, given, now)
        if isinstance(window, Rolling):
            start = now - window.length
            used = _with_open(self._source.totals(start, now), open_uses, start, now)
            credited = _credits(given, start, now + 1)
            return {
                name: Balance(budget.amount + credited.get(name, 0), budget.units(used.get(name, {})), start)
                for name in namespaces
            }
        return self._half_life(budget, window, namespaces, open_uses, given, now)

    def _calendar(
        self,
        budget: Budget,
        window: Calendar,
        namespaces: Iterable[str],
        open_uses: Sequence[OpenUse],
        given: Sequence[Credit],
        now: int,
    ) -> dict[str, Balance]:
        start, end = window.bounds(now)
        carries = budget.carry_over or budget.borrow
        openings, idle = self._opening(budget, window, start, given) if carries else ({}, 0)
        used = _with_open(self._source.totals(start, now), open_uses, start, now)
        credited = _credits(given, start, end)
        return {
            name: Balance(
                budget.amount + openings.get(name, idle) + credited.get(name, 0) + budget.borrow,
                budget.units(used.get(name, {})),
                start,
                end,
            )
            for name in namespaces
        }

    def _opening(
        self, budget: Budget, window: Calendar, start: int, given: Sequence[Credit]
    ) -> tuple[dict[str, int], int]:
        """What each namespace begins the window with: what the one before left, within bounds. Below zero is owed.
        And what a namespace begins with that never used anything.
        """
        known = (budget.uid, budget.generation, tuple((each.key, each.at) for each in given))
        remembered = self._openings.get(budget.name)
        if remembered is not None and remembered[0] == known and remembered[1] <= start:
            _, at, openings = remembered
        else:
            at, openings = window.bounds(max(budget.created, 0))[0], {}
        idle = self._idle_opening(budget, window, at)
        openings = dict(openings)
        while at < start:
            end = window.bounds(at)[1]
            totals, credited = self._source.totals(at, end), _credits(given, at, end)
            for name in {*openings, *totals, *credited}:
                left = budget.amount + openings.get(name, idle) + credited.get(name, 0)
                left -= budget.units(totals.get(name, {}))
                openings[name] = max(-budget.borrow, min(budget.carry_over, left))
            at, idle = end, min(budget.carry_over, idle + budget.amount)
        self._openings[budget.name] = known, start, openings
        return openings, idle

    @staticmethod
    def _idle_opening(budget: Budget, window: Calendar, at: int) -> int:
        """What a namespace has by then that never used anything."""
        idle, first = 0, window.bounds(max(budget.created, 0))[0]
        while first < at and idle < budget.carry_over:
            idle, first = min(budget.carry_over, idle + budget.amount), window.bounds(first)[1]
        return idle

    def _half_life(
        self,
        budget: Budget,
        window: HalfLife,
        namespaces: Iterable[str],
        open_uses: Sequence[OpenUse],
        given: Sequence[Credit],
        now: int,
    ) -> dict[str, Balance]:
        boundary = min([now, *(each.start for each in open_uses)]) // HOUR_MS * HOUR_MS
        closed = self._decay_to(budget, window, boundary)
        # Of the ledger what is younger than the boundary, and what goes on.
        recent = [*self._source.hours(boundary, now)]
        left: dict[str, dict[int, float]] = {
            name: {price: amount * window.factor(now - boundary) for price, amount in amounts.items()}
            for name, amounts in closed.items()
        }
        for name, price, hour, amount in recent:
            _add(left, name, price, window.left_of(amount, hour, min(hour + HOUR_MS, now), now))
        for each in open_uses:
            amount = each.parts * (each.until - each.start)
            _add(left, each.namespace, each.price, window.left_of(amount, each.start, each.until, now))
        credited: dict[str, float] = {}
        for credit in given:
            credited[credit.namespace] = credited.get(credit.namespace, 0.0) + credit.amount * window.factor(
                now - credit.at
            )
        return {
            name: Balance(
                budget.amount + math.floor(credited.get(name, 0.0)),
                budget.units({price: round(amount) for price, amount in left.get(name, {}).items()}),
                now - window.memory,
            )
            for name in namespaces
        }

    def _decay_to(self, budget: Budget, window: HalfLife, boundary: int) -> dict[str, dict[int, float]]:
        known = (budget.uid, budget.generation)
        remembered = self._decayed.get(budget.name)
        if remembered is not None and remembered[0] == known and remembered[1] <= boundary:
            _, at, before = remembered
        else:
            at, before = boundary - window.memory // HOUR_MS * HOUR_MS, {}
        if at < boundary:
            factor = window.factor(boundary - at)
            after = {
                name: {price: amount * factor for price, amount in by_price.items()}
                for name, by_price in before.items()
            }
            for name, price, hour, amount in self._source.hours(at, boundary):
                _add(after, name, price, window.left_of(amount, hour, hour + HOUR_MS, boundary))
            before = after
        self._decayed[budget.name] = known, boundary, before
        return before


def _add(left: dict[str, dict[int, float]], name: str, price: int, amount: float) -> None:
    by_price = left.setdefault(name, {})
    by_price[price] = by_price.get(price, 0.0) + amount


def _credits(given: Iterable[Credit], start: int, end: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in given:
        if start <= each.at < end:
            found[each.namespace] = found.get(each.namespace, 0) + each.amount
    return found


def _with_open(totals: dict[str, Amounts], uses: Iterable[OpenUse], start: int, now: int) -> dict[str, Amounts]:
    for name, price, amount in _clipped(uses, start, now):
        by_price = totals.setdefault(name, {})
        by_price[price] = by_price.get(price, 0) + amount
    return totals


def _clipped(uses: Iterable[OpenUse], start: int, now: int) -> Iterator[tuple[str, int, int]]:
    for each in uses:
        time = min(each.until, now) - max(each.start, start)
        if time > 0:
            yield each.namespace, each.price, each.parts * time
