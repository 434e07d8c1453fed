"""Whose attach request is answered next: one of each tenant in turn.

A tenant can ask as often as it likes and never read an answer. So requests wait in a queue per tenant, each queue has
its turn, and a tenant that asks more often than its rate, or has too many requests waiting, waits for itself alone.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Request = TypeVar("Request")


class Turns(Generic[Request]):
    """Requests that wait. `most` of a tenant wait, and `burst` are served at once, then `rate` in a second."""

    def __init__(self, *, most: int, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = 1 / rate
        self._burst_seconds = (burst - 1) / rate
        self._clock = clock
        self._queues: OrderedDict[str, deque[Request]] = OrderedDict()  # the next tenant's first
        #: Until when a tenant has used its rate up. One that is not here, or whose time is past, has used none.
        self._used_until: dict[str, float] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, tenant: str, request: Request) -> bool:
        """False if too many requests of that tenant wait already."""
        queue = self._queues.setdefault(tenant, deque())
        if len(queue) >= self._most:
            return False
        queue.append(request)
        self._count += 1
        return True

    def take(self) -> Request | None:
        """The next request, or None if none waits, or all that wait must wait longer."""
        now = self._clock()
        for tenant in self._queues:
            used_until = max(now, self._used_until.get(tenant, now))
            if used_until - now <= self._burst_seconds:
                self._used_until[tenant] = used_until + self._seconds
                self._queues.move_to_end(tenant)
                return self._take_from(tenant)
        return None

    def seconds_to_wait(self) -> float | None:
        """Until a request can be taken; None if none waits."""
        now = self._clock()
        waits = [self._used_until.get(tenant, now) - now - self._burst_seconds for tenant in self._queues]
        return max(0.0, min(waits)) if waits else None

    def longest(self) -> int:
        """How many requests of the tenant with most of them wait."""
        return max(map(len, self._queues.values()), default=0)

    def take_from_longest(self) -> Request:
        """The oldest request of the tenant with most of them."""
        return self._take_from(max(self._queues, key=lambda tenant: len(self._queues[tenant])))

    def forget(self) -> None:
        """Keeps nothing of tenants that have not asked for a while."""
        now = self._clock()
        self._used_until = {tenant: until for tenant, until in self._used_until.items() if until > now}

    def _take_from(self, tenant: str) -> Request:
        queue = self._queues[tenant]
        request = queue.popleft()
        self._count -= 1
        if not queue:
            del self._queues[tenant]
        return request
