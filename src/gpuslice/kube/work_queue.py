"""A queue of keys to work on, as client-go has it.

A key is in the queue at most once, however often it is added. One that is added while it is worked on is worked on once
more afterwards, and never twice at a time. A key that failed comes back after a wait that grows from failure to
failure, for that key alone.

    queue = WorkQueue("policy-status", WorkQueueMetrics(registry))
    informer.listen(lambda key, old, new: queue.add(key))
    await queue.run(reconcile, workers=2)
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog
from prometheus_client import Counter, Gauge, Histogram

from gpuslice.model.errors import GpusliceError
from gpuslice.system.supervised.backoff import delay
from gpuslice.system.supervised.health import describe
from gpuslice.system.supervised.tasks import cancelled_from_within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from prometheus_client import CollectorRegistry

K = TypeVar("K", bound="Hashable")

_BUCKETS: Final = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)


class QueueEnded(Exception):  # noqa: N818 - no error: workers end by it
    """Raised by `get` when there is nothing to be had any more."""


class WorkQueueMetrics:
    """The queues of a process as Prometheus sees them. One object per process; each series begins with zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        label = ("queue",)
        self.depth: Final = Gauge(
            "gpuslice_workqueue_depth", "Keys that wait to be worked on.", label, registry=registry
        )
        self.adds: Final = Counter(
            "gpuslice_workqueue_adds_total", "Keys that were added, without those that waited already.", label,
            registry=registry,
        )  # fmt: skip
        self.retries: Final = Counter(
            "gpuslice_workqueue_retries_total", "Keys that failed and were added again after a wait.", label,
            registry=registry,
        )  # fmt: skip
        self.longest_running: Final = Gauge(
            "gpuslice_workqueue_longest_running_seconds", "For how long the oldest key under work has been so.", label,
            registry=registry,
        )  # fmt: skip
        self.queued: Final = Histogram(
            "gpuslice_workqueue_queued_seconds", "How long keys waited.", label, buckets=_BUCKETS, registry=registry
        )
        self.worked: Final = Histogram(
            "gpuslice_workqueue_work_seconds", "How long keys were worked on.", label, buckets=_BUCKETS,
            registry=registry,
        )  # fmt: skip


class WorkQueue(Generic[K]):
    """For one event loop. Waits after failures are between `shortest` and `longest` seconds."""

    def __init__(self, name: str, metrics: WorkQueueMetrics, *, shortest: float = 0.2, longest: float = 60.0) -> None:
        self.name: Final = name
        self._shortest = shortest
        self._longest = longest
        #: Keys to be handed out, in the order in which they came.
        self._waiting: deque[K] = deque()
        #: Keys that have to be worked on, each with the time since when: those that wait, and those that were added
        #: while they were worked on.
        self._dirty: dict[K, float] = {}
        #: Keys that are worked on, with the time since when.
        self._under_work: dict[K, float] = {}
        self._delayed: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        #: Keys that last failed by an error that no code here raises on purpose, each with that error.
        self._unexpected: dict[K, str] = {}
        self._ended = False
        self._wake = asyncio.Event()
        self._log = structlog.get_logger().bind(queue=name)
        self._adds = metrics.adds.labels(name)
        self._retries = metrics.retries.labels(name)
        self._queued = metrics.queued.labels(name)
        self._worked = metrics.worked.labels(name)
        metrics.depth.labels(name).set_function(lambda: len(self._waiting))
        self._loop: asyncio.AbstractEventLoop | None = None
        metrics.longest_running.labels(name).set_function(self.longest_running)

    def __len__(self) -> int:
        return len(self._waiting)

    def longest_running(self) -> float:
        """For how many seconds the oldest key under work has been so. May be asked by any thread."""
        started = min(list(self._under_work.values()), default=None)
        return 0.0 if started is None or self._loop is None else max(self._loop.time() - started, 0.0)

    def failures(self, key: K) -> int:
        """How often in a row it failed."""
        return self._failures.get(key, 0)

    def unexpected_failure(self) -> str:
        """A key that last failed by an error that no code here raises on purpose, for /readyz; empty if there is none.

        Other failures, as of an API server that does not answer, are no mistake of this process and pass.
        """
        for key, error in self._unexpected.items():
            others = f" (and {len(self._unexpected) - 1} other keys)" if len(self._unexpected) > 1 else ""
            return f"fails on {key!r}, and tries again: {error}{others}"
        return ""

    def add(self, key: K) -> None:
        """It is to be worked on as soon as possible."""
        if self._ended or key in self._dirty:
            return
        self._dirty[key] = self._now()
        self._adds.inc()
        if key not in self._under_work:
            self._waiting.append(key)
            self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """The same after so long. Of several such wishes for one key the earliest counts."""
        if self._ended:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = self._now() + seconds
        known = self._delayed.get(key)
        if known is not None:
            if known.when() <= due:
                return
            known.cancel()
        self._delayed[key] = asyncio.get_running_loop().call_at(due, self._add_delayed, key)

    def add_rate_limited(self, key: K) -> float:
        """After a failure: the same after a wait that is longer for each failure in a row. Says how long."""
        self._failures[key] = failures = self.failures(key) + 1
        self._retries.inc()
        seconds = delay(failures, self._shortest, self._longest)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """After a success: the next failure is the first again."""
        self._failures.pop(key, None)
        self._unexpected.pop(key, None)

    async def get(self) -> K:
        """The next key. `done` must be called for it; until then it is not handed out again.

        Raises QueueEnded after `end`.
        """
        while not self._waiting:
            if self._ended:
                raise QueueEnded
            self._wake.clear()
            await self._wake.wait()
        key = self._waiting.popleft()
        now = self._now()
        self._queued.observe(now - self._dirty.pop(key))
        self._under_work[key] = now
        return key

    def done(self, key: K) -> None:
        """The work on it is over, for better or worse."""
        self._worked.observe(self._now() - self._under_work.pop(key))
        if key in self._dirty:
            self._waiting.append(key)
            self._wake.set()
        elif self._ended:
            self._wake.set()  # the last one may have been waited for

    def end(self, *, drain: bool) -> None:
        """Takes nothing more. With `drain` what waits is still handed out, else it is dropped; what would come later is
        dropped in both cases.
        """
        self._ended = True
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        if not drain:
            self._waiting.clear()
            self._dirty.clear()
        self._wake.set()

    async def run(self, work: Callable[[K], Awaitable[float | None]], *, workers: int = 1) -> None:
        """Works on the keys, so many at a time, until the queue ends or this is cancelled.

        `work` may return after how many seconds it wants to see the key again. If it fails, the key comes back after
        the wait of `add_rate_limited`.
        """
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(self._work_on(work), name=f"{self.name}-{number}")

    async def _work_on(self, work: Callable[[K], Awaitable[float | None]]) -> None:
        while True:
            try:
                key = await self.get()
            except QueueEnded:
                return
            try:
                again = await work(key)
            except asyncio.CancelledError as error:
                if not cancelled_from_within():
                    raise
                self._failed(key, error)
            except Exception as error:  # noqa: BLE001 - one key's failure must not stop the others
                self._failed(key, error)
            else:
                self.forget(key)
                if again is not None:
                    self.add_after(key, again)
            finally:
                self.done(key)

    def _failed(self, key: K, error: BaseException) -> None:
        seconds = self.add_rate_limited(key)
        if isinstance(error, GpusliceError):
            self._unexpected.pop(key, None)
        else:
            self._unexpected[key] = describe(error)
        self._log.warning(
            "work on a key failed; trying again",
            key=key,
            failures=self.failures(key),
            seconds=round(seconds, 3),
            error=describe(error),
            # Of a mistake of ours the place in the code matters; other errors say in their own words what is wrong.
            exc_info=None if isinstance(error, GpusliceError) else error,
        )

    def _add_delayed(self, key: K) -> None:
        del self._delayed[key]
        self.add(key)

    def _now(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()
