"""Background work that cannot fail in silence.

Each part of a process is started under a name, and beside it stands what happens when it fails: it is restarted with a
backoff, or the process ends. Either way the failure is logged, counted, and named by /readyz. All parts are tasks of
one TaskGroup, so none is forgotten, and they are stopped one after another, the last started first: what is started
later may use what was started before.

    supervisor = Supervisor(Health(), SupervisionMetrics(registry))
    supervisor.add("publisher", publisher.run, Restart())
    supervisor.add("attach", attach.serve, END_PROCESS)
    await supervisor.run(stop.wait())
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import Counter, Gauge

from gpuslice.model.errors import GpusliceError
from gpuslice.system.supervised.backoff import Backoff
from gpuslice.system.supervised.health import describe
from gpuslice.system.supervised.tasks import cancel_and_wait, cancelled_from_within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from prometheus_client import CollectorRegistry

    from gpuslice.system.supervised.health import Health, Part


class PartFailedError(GpusliceError):
    """Raised when a part failed whose failure is to end the process. The part's own error is its cause."""

    def __init__(self, part: str, cause: Exception) -> None:
        super().__init__(f"the part {part!r} failed, and the process ends with it: {describe(cause)}")
        self.part = part


class PartEndedError(GpusliceError):
    """Stands for the failure of a part that returned, although its work has no end."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The part is started again, after a wait that grows while it keeps failing. One that worked for longer than the
    longest wait starts with the shortest again.
    """

    shortest: float = 1.0
    longest: float = 60.0


class EndProcess:
    """The process ends: what the part had in memory cannot be trusted, or nothing works without it."""


END_PROCESS: Final = EndProcess()


class SupervisionMetrics:
    """The parts of a process as Prometheus sees them. One object per process; each series begins with zero."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.failures: Final = Counter(
            "gpuslice_part_failures_total",
            "Failures of a part of this process: exceptions that its work did not expect.",
            ("part",),
            registry=registry,
        )
        self.restarts: Final = Counter(
            "gpuslice_part_restarts_total", "Times that a part was started again.", ("part",), registry=registry
        )
        self.running: Final = Gauge(
            "gpuslice_part_running", "1 while the part works, 0 while it waits or has ended.", ("part",),
            registry=registry,
        )  # fmt: skip

    def add(self, part: str) -> None:
        self.failures.labels(part)
        self.restarts.labels(part)
        self.running.labels(part)


@dataclass(frozen=True, slots=True)
class _Supervised:
    name: str
    work: Callable[[], Coroutine[Any, Any, None]]
    on_failure: Restart | EndProcess
    endless: bool
    health: Part


class Supervisor:
    """Runs the parts of a process, or of one part of it: supervisors may be nested."""

    def __init__(self, health: Health, metrics: SupervisionMetrics) -> None:
        self._health = health
        self._metrics = metrics
        self._parts: list[_Supervised] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._group: asyncio.TaskGroup | None = None
        self._failed: asyncio.Future[PartFailedError] | None = None
        self._log = structlog.get_logger()

    def add(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        on_failure: Restart | EndProcess,
        *,
        endless: bool = True,
        stale_seconds: float | None = None,
    ) -> Part:
        """Starts it with `run`, or at once if that is under way.

        A part that returns has failed, too, unless it is not `endless`. The health that is given back is ready while
        the work runs; work with `stale_seconds` must call its `beat` at least that often.
        """
        part = _Supervised(name, work, on_failure, endless, self._health.part(name, stale_seconds=stale_seconds))
        self._metrics.add(name)
        self._parts.append(part)
        if self._group is not None:
            self._start(part, self._group)
        return part.health

    async def run(self, main: Coroutine[Any, Any, object]) -> None:
        """Until `main` ends or this is cancelled; then stops the parts, the last one first.

        Raises PartFailedError if a part failed that ends the process, and what `main` raises.
        """
        self._failed = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for part in list(self._parts):
                    self._start(part, group)
                body = asyncio.ensure_future(main)
                try:
                    await asyncio.wait((body, self._failed), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    self._group = None  # what is added while parts stop would never be stopped
                    await cancel_and_wait(body)
                    failure = None if body.cancelled() else body.exception()
                    while self._tasks:
                        await cancel_and_wait(self._tasks.pop())
        finally:
            for part in self._parts:
                self._health.remove(part.health)
            self._parts.clear()
        if self._failed.done():
            raise self._failed.result()
        if failure is not None:
            raise failure

    def _start(self, part: _Supervised, group: asyncio.TaskGroup) -> None:
        self._tasks.append(group.create_task(self._guard(part), name=part.name))

    async def _guard(self, part: _Supervised) -> None:
        """Raises nothing but CancelledError: a failure must not cancel the other parts in no order."""
        policy = part.on_failure
        backoff = Backoff(policy.shortest, policy.longest) if isinstance(policy, Restart) else None
        while True:
            started = asyncio.get_running_loop().time()
            error = await self._work(part)
            if error is None:
                self._health.remove(part.health)
                return
            self._metrics.failures.labels(part.name).inc()
            if backoff is None or not isinstance(policy, Restart):
                self._end(part, error)
                return
            if asyncio.get_running_loop().time() - started > policy.longest:
                backoff.reset()
            seconds = backoff.seconds()
            part.health.ill(f"failed, and starts again within {seconds:.1f} s: {describe(error)}")
            self._log.error("a part failed, and is started again", part=part.name, seconds=seconds, exc_info=error)
            await asyncio.sleep(seconds)
            self._metrics.restarts.labels(part.name).inc()

    async def _work(self, part: _Supervised) -> Exception | None:
        """Why it failed; None if it has done its work."""
        running = self._metrics.running.labels(part.name)
        running.set(1)
        part.health.ready()
        try:
            await part.work()
        except asyncio.CancelledError:
            if not cancelled_from_within():
                raise
            return PartEndedError("its work was cancelled from within")
        except Exception as error:  # noqa: BLE001 - the caller logs it, and acts on it
            return error
        finally:
            running.set(0)
        return PartEndedError("its work ended, and should not") if part.endless else None

    def _end(self, part: _Supervised, error: Exception) -> None:
        part.health.ill(f"failed, and ends the process: {describe(error)}")
        self._log.error("a part failed, and the process ends", part=part.name, exc_info=error)
        assert self._failed is not None, "parts run only while `run` does"
        if not self._failed.done():
            failure = PartFailedError(part.name, error)
            failure.__cause__ = error
            self._failed.set_result(failure)
