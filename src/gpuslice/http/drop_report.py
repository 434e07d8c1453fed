"""Logs which addresses lost connections, and why: one line for many drops, because a flood has many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    import asyncio

_FIRST_SECONDS: Final = 1.0
_BETWEEN_SECONDS: Final = 10.0
#: Addresses that a line names, and that are counted one by one until then.
_NAMED: Final = 5
_MOST_COUNTED: Final = 1024
_OTHERS: Final = "others"


class DropReport:
    """Counts, writes a line a second after the first drop, and then every ten seconds while there are more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts: dict[str, Counter[str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def add(self, reason: str, source: str) -> None:
        counts = self._counts.setdefault(reason, Counter())
        counts[source if source in counts or len(counts) < _MOST_COUNTED else _OTHERS] += 1
        if self._timer is None:
            now = self._loop.time()
            self._timer = self._loop.call_at(max(now + _FIRST_SECONDS, self._next), self.write)

    def write(self) -> None:
        """Writes what was counted, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next = self._loop.time() + _BETWEEN_SECONDS
        for reason, counts in self._counts.items():
            self._log.warning(
                "connections dropped",
                reason=reason,
                count=counts.total(),
                addresses=len(counts),
                most=dict(counts.most_common(_NAMED)),
            )
        self._counts.clear()
