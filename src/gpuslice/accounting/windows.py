"""Over which time a budget counts. Pure; times are milliseconds since 1970.

A calendar's window begins at local midnight, so that a day of 23 or 25 hours is one day. A rolling window has no end:
what is older than its length is forgotten. Under a half-life, what was used counts for half after that time, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

_LN2: Final = math.log(2)
#: After so many half-lives less than a millionth of a millionth is left.
_FORGOTTEN: Final = 40


class Period(StrEnum):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


@dataclass(frozen=True, slots=True)
class Calendar:
    """Weeks begin on Monday."""

    period: Period
    zone: str = "UTC"

    def bounds(self, at: int) -> tuple[int, int]:
        """When the window of that moment begins, and when the next one does."""
        local = datetime.fromtimestamp(at // 1000, _zone(self.zone))
        return _midnights(self.period, self.zone, local.year, local.month, local.day)

    def starts(self, since: int, until: int) -> list[int]:
        """The beginnings of all windows from that of `since` to that of `until`."""
        found = []
        start, end = self.bounds(since)
        while start <= until:
            found.append(start)
            start, end = end, self.bounds(end)[1]
        return found


@dataclass(frozen=True, slots=True)
class Rolling:
    length: int


@dataclass(frozen=True, slots=True)
class HalfLife:
    length: int

    @property
    def memory(self) -> int:
        """How far back it is worth looking."""
        return self.length * _FORGOTTEN

    def factor(self, age: int) -> float:
        """What is left of a use that is so old."""
        return math.exp2(-age / self.length)

    def left_of(self, amount: int, start: int, until: int, now: int) -> float:
        """What is left of an amount that was used evenly over a time."""
        if until <= start:
            return amount * self.factor(now - until)
        evenly = self.length / _LN2 / (until - start)
        return amount * evenly * (self.factor(now - until) - self.factor(now - start))


Window = Calendar | Rolling | HalfLife


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache(maxsize=4096)
def _midnights(period: Period, zone: str, year: int, month: int, day: int) -> tuple[int, int]:
    first = datetime(year, month, day, tzinfo=UTC)  # of a calendar alone: no zone is meant yet
    if period is Period.DAY:
        last = first + timedelta(days=1)
    elif period is Period.WEEK:
        first -= timedelta(days=first.weekday())
        last = first + timedelta(days=7)
    elif period is Period.MONTH:
        first = first.replace(day=1)
        last = (first + timedelta(days=31)).replace(day=1)
    else:
        first = first.replace(month=1, day=1)
        last = first.replace(year=year + 1)
    return _midnight(first, zone), _midnight(last, zone)


def _midnight(date: datetime, zone: str) -> int:
    """The first moment of a day there. Where midnight is skipped, it is the moment at which it is."""
    return int(datetime(date.year, date.month, date.day, tzinfo=_zone(zone)).timestamp()) * 1000
