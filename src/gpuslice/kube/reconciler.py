"""Reconcilers, and the manager that hosts them: a new one is a class of its own and one line where they are listed.

A reconciler says what it watches and which keys a change concerns; `reconcile` gets a key, looks at what is and at what
should be, and closes the gap. What it is called for does not matter: it looks at the stores, so that a change that was
missed, or told twice, does no harm.

    class PolicyStatus(Reconciler[str]):
        name = "policy-status"

        def __init__(self, informers: Informers, api: Api) -> None:
            self.policies = informers.informer(SLICE_POLICIES, StoredPolicy, parse)

        def triggers(self) -> Iterable[Trigger[str]]:
            yield Trigger(self.policies, lambda key, _old, _new: (key[1],))

        async def reconcile(self, key: str) -> None:
            ...

    manager = Manager(informers, health, registry, [PolicyStatus(informers, api), ...])
    await election.run(manager.run)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

from prometheus_client.registry import Collector

from gpuslice.kube.informers import Informer, InformerCollector, Informers
from gpuslice.kube.work_queue import WorkQueue, WorkQueueMetrics
from gpuslice.system.supervised.supervision import END_PROCESS, Restart, SupervisionMetrics, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from gpuslice.kube.store import Key
    from gpuslice.system.supervised.health import Health

K = TypeVar("K", bound="Hashable")

#: A process that has not heard of the API server for so long, or works on one key for so long, is better replaced.
STUCK_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Trigger(Generic[K]):
    """An informer, and which keys a change of one of its objects concerns."""

    informer: Informer[Any]
    #: Called with the object's key, and its value before and after the change.
    keys: Callable[[Key, Any, Any], Iterable[K]]


class Reconciler(Protocol[K]):
    """One thing that is kept as it should be. What is not abstract here may be left as it is."""

    #: In metrics, health and logs.
    name: ClassVar[str]
    #: Keys that are reconciled at a time.
    workers: ClassVar[int] = 1
    #: The waits after failures of a key, in seconds.
    shortest_wait: ClassVar[float] = 0.2
    longest_wait: ClassVar[float] = 60.0

    def triggers(self) -> Iterable[Trigger[K]]:
        """What it watches. Reconciling begins when all of these have been seen whole."""
        return ()

    def first_keys(self) -> Iterable[K]:
        """Keys to reconcile at the start, without a change: for work that is done now and then."""
        return ()

    def attach(self, add: Callable[[K], None]) -> None:  # noqa: ARG002 - for those that override it
        """Called once, with the function that adds a key: for causes that no informer tells of, as a GPU that is gone.
        It is to be called on the event loop.
        """
        return  # without it, it would be abstract

    async def reconcile(self, key: K) -> float | None:
        """Puts right what the key stands for. Returns after how many seconds to look again, if that is needed without a
        change. If it raises, the key comes back after a wait that grows from failure to failure.
        """
        ...

    def unhealthy(self) -> str:
        """Why a new process would do better, beyond what the manager sees; empty if it would not. For both probes."""
        return ""

    def unready(self) -> str:
        """What is not as it should be, and a new process would not mend; empty if nothing is. For /readyz alone."""
        return ""

    def metrics(self) -> Iterable[Metric]:
        """Its own metrics. Each series exists before its first event."""
        return ()


class Manager(Collector):
    """Runs informers and reconcilers: while it leads, where there is an election.

    A process that `needs_server` is better replaced when the API server is silent for too long; another one goes on
    with what it knows, because a new one would know nothing.
    """

    def __init__(
        self,
        informers: Informers,
        health: Health,
        registry: CollectorRegistry,
        reconcilers: Sequence[Reconciler[Any]],
        *,
        supervision: SupervisionMetrics | None = None,
        needs_server: bool = True,
    ) -> None:
        self._informers = informers
        self._health = health
        self._supervision = supervision or SupervisionMetrics(registry)
        self._metrics = WorkQueueMetrics(registry)
        self._hosted = [_Hosted(each, self._metrics) for each in reconcilers]
        self._started: float | None = None
        registry.register(InformerCollector(informers))
        registry.register(self)
        if needs_server:
            health.check("informers", self._silence, liveness=True)
        health.check("informers", self._failing, liveness=False)
        for hosted in self._hosted:
            health.check(hosted.reconciler.name, hosted.unhealthy, liveness=True)
            health.check(hosted.reconciler.name, hosted.unready, liveness=False)

    async def run(self) -> None:
        """Until it is cancelled. Raises PartFailedError if the informers fail."""
        supervisor = Supervisor(self._health, self._supervision)
        self.add_to(supervisor)
        await supervisor.run(asyncio.Event().wait())

    def add_to(self, supervisor: Supervisor) -> None:
        """Instead of `run`: the informers and the reconcilers become parts of a process that has other parts, too."""
        # What watches failed to understand would be missing in every store: a new process lists everything.
        supervisor.add("informers", self._run_informers, END_PROCESS)
        for hosted in self._hosted:
            # The stores are whole, and keys that wait are still in the queue: starting again loses nothing.
            supervisor.add(hosted.reconciler.name, hosted.run, Restart())

    async def _run_informers(self) -> None:
        self._started = asyncio.get_running_loop().time()
        try:
            await self._informers.run()
        finally:
            self._started = None

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for hosted in self._hosted:
            yield from hosted.reconciler.metrics()

    def _silence(self) -> str:
        """A process that waits for its turn hears nothing, and is well."""
        if self._started is None or asyncio.get_running_loop().time() - self._started < STUCK_SECONDS:
            return ""
        silent = self._informers.silent(STUCK_SECONDS)
        return f"nothing was heard of {', '.join(silent)} for {STUCK_SECONDS:.0f} s" if silent else ""

    def _failing(self) -> str:
        failing = self._informers.failing()
        told = [f"a listener of {', '.join(failing)} fails: the log says how"] if failing else []
        return "; ".join([*self._informers.unlisted(), *told])


class _Hosted(Generic[K]):
    """A reconciler with its queue."""

    def __init__(self, reconciler: Reconciler[K], metrics: WorkQueueMetrics) -> None:
        self.reconciler: Final = reconciler
        self._queue: WorkQueue[K] = WorkQueue(
            reconciler.name, metrics, shortest=reconciler.shortest_wait, longest=reconciler.longest_wait
        )
        self._informers: list[Informer[Any]] = []
        self._running = False
        for trigger in reconciler.triggers():
            trigger.informer.store.listen(self._listener(trigger))
            self._informers.append(trigger.informer)
        reconciler.attach(self._queue.add)

    async def run(self) -> None:
        self._running = True
        try:
            await self._run()
        finally:
            self._running = False

    async def _run(self) -> None:
        for informer in self._informers:
            await informer.synced.wait()
        for key in self.reconciler.first_keys():
            self._queue.add(key)
        await self._queue.run(self.reconciler.reconcile, workers=self.reconciler.workers)

    def unhealthy(self) -> str:
        running = self._queue.longest_running()
        if running > STUCK_SECONDS:
            return f"has worked on one key for {running:.0f} s"
        return self.reconciler.unhealthy()

    def unready(self) -> str:
        """What it waits for before it begins, which keys fail, and what it says itself. A process that waits for its
        turn has nothing to do with it.
        """
        if not self._running:
            return ""
        missing = sorted({each.resource.plural for each in self._informers if not each.synced.is_set()})
        if missing:
            return f"waits until all {', '.join(missing)} were listed"
        return self._queue.unexpected_failure() or self.reconciler.unready()

    def _listener(self, trigger: Trigger[K]) -> Callable[[Key, Any, Any], None]:
        def hear(key: Key, old: object, new: object) -> None:
            for each in trigger.keys(key, old, new):
                self._queue.add(each)

        return hear
