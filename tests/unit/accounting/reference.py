"""Balances worked out the plain way: every use, every window, from the beginning, in exact numbers and local dates."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.accounting.budgets.balance import Amounts
    from gpuslice.accounting.metering import Entry


class MemoryUsage:
    """A ledger in memory, hour by hour."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)

    def totals(self, start: int, until: int) -> dict[str, Amounts]:
        found: dict[str, Amounts] = {}
        for entry in self.entries:
            time = min(entry.until, until) - max(entry.start, start)
            if time > 0 and entry.holder.namespace:
                by_price = found.setdefault(entry.holder.namespace, {})
                by_price[entry.price] = by_price.get(entry.price, 0) + entry.parts * time
        return found

    def hours(self, start: int, until: int) -> Iterable[tuple[str, int, int, int]]:
        for entry in self.entries:
            if start <= entry.start < until and entry.holder.namespace:
                yield entry.holder.namespace, entry.price, entry.start // 3_600_000 * 3_600_000, entry.amount


def local_date(at: int, zone: str) -> date:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)).astimezone(ZoneInfo(zone)).date()


def window_of(day: date, period: str) -> tuple[int, ...]:
    """What all days of one window have in common."""
    if period == "day":
        return day.year, day.month, day.day
    if period == "week":
        return tuple(day.isocalendar()[:2])
    return (day.year, day.month) if period == "month" else (day.year,)


def used_in_window(uses: Iterable[tuple[int, int]], now: int, period: str, zone: str) -> int:
    """Uses are hours and amounts."""
    wanted = window_of(local_date(now, zone), period)
    return sum(amount for hour, amount in uses if hour < now and window_of(local_date(hour, zone), period) == wanted)


def carried(
    uses: Iterable[tuple[int, int]], since: int, now: int, zone: str, amount: int, cap: int, borrow: int
) -> int:
    """What a month begins with, all months before it played through."""
    by_month: dict[tuple[int, ...], int] = {}
    day, last = local_date(since, zone), local_date(now, zone)
    while day <= last:
        by_month.setdefault(window_of(day, "month"), 0)
        day += timedelta(days=1)
    for hour, used in uses:
        if hour < now:
            by_month[window_of(local_date(hour, zone), "month")] += used
    opening = 0
    for month, used in sorted(by_month.items()):
        if month == window_of(last, "month"):
            return opening
        opening = max(-borrow, min(cap, amount + opening - used))
    raise AssertionError("the month of now comes last")


def decayed(uses: Iterable[tuple[int, int]], now: int, half_life: int) -> float:
    """Each hour cut into minutes."""
    total = Fraction(0)
    for hour, amount in uses:
        if hour < now:
            for minute in range(60):
                age = now - (hour + minute * 60_000 + 30_000)
                total += Fraction(amount, 60) * Fraction(0.5 ** (age / half_life))
    return float(total)
