"""The manager runs what it hosts, and says what is wrong with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily

from gpuslice.kube.client.api import Api
from gpuslice.kube.client.credentials import Credentials
from gpuslice.kube.informers import Informers
from gpuslice.kube.reconciler import STUCK_SECONDS, Manager, Reconciler, Trigger
from gpuslice.kube.resources import NODES, ObjectMetadata
from gpuslice.system.supervised.health import Answer, Health
from gpuslice.system.supervised.supervision import PartFailedError
from tests import fake_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from prometheus_client.core import Metric

_OK = Answer(well=True, text="ok")


def _unreachable() -> Api:
    """Nothing listens there."""
    return Api(Credentials(server="http://127.0.0.1:1", tls=None), "tests")


class _Sweeper(Reconciler[str]):
    """Work that is done now and then, and nothing else."""

    name: ClassVar[str] = "sweeper"

    def __init__(self) -> None:
        self.sweeps: list[float] = []
        self.sick = ""

    def first_keys(self) -> Iterable[str]:
        return ("all",)

    async def reconcile(self, key: str) -> float:
        assert key == "all"
        self.sweeps.append(asyncio.get_running_loop().time())
        return 30.0

    def unhealthy(self) -> str:
        return self.sick

    def metrics(self) -> Iterator[Metric]:
        yield CounterMetricFamily("sweeps", "How often.", value=len(self.sweeps))


class _Stuck(_Sweeper):
    name: ClassVar[str] = "stuck"

    async def reconcile(self, _key: str) -> float:
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")


class _Watcher(_Sweeper):
    name: ClassVar[str] = "watcher"

    def __init__(self, informers: Informers) -> None:
        super().__init__()
        self._nodes = informers.informer(NODES, ObjectMetadata, lambda found: found.metadata.name)

    def triggers(self) -> Iterator[Trigger[str]]:
        yield Trigger(self._nodes, lambda key, _old, _new: (key[1],))


class _Hosting:
    def __init__(self, informers: Informers, *reconcilers: Reconciler[Any]) -> None:
        self.health, self.registry = Health(), CollectorRegistry()
        self.manager = Manager(informers, self.health, self.registry, reconcilers)
        self.answers: list[tuple[Answer, Answer]] = []

    def run(self, *moments: float) -> None:
        """Until the last of these moments; notes at each what health says."""

        async def run() -> None:
            self.look()
            running = asyncio.ensure_future(self.manager.run())
            try:
                for moment in moments:
                    await asyncio.sleep(moment - asyncio.get_running_loop().time())
                    assert not running.done()
                    self.look()
            finally:
                running.cancel()
                await asyncio.wait((running,))
            self.look()

        with structlog.testing.capture_logs():
            fake_time.run(run())

    def look(self) -> None:
        self.answers.append((self.health.alive(), self.health.ready()))


def test_work_that_is_done_now_and_then_needs_no_watch() -> None:
    sweeper = _Sweeper()
    hosting = _Hosting(Informers(_unreachable()), sweeper)
    assert b"sweeps_total 0.0" in generate_latest(hosting.registry)
    hosting.run(299)
    assert sweeper.sweeps == [30.0 * number for number in range(10)]
    assert b"sweeps_total 10.0" in generate_latest(hosting.registry)
    assert hosting.registry.get_sample_value("gpuslice_workqueue_adds_total", {"queue": "sweeper"}) == 10
    assert hosting.registry.get_sample_value("gpuslice_part_failures_total", {"part": "sweeper"}) == 0
    assert hosting.answers == [(_OK, _OK)] * 3, "one that does not run is well, too"


def test_what_no_informer_tells_of_is_reconciled_too() -> None:
    class Publisher(_Sweeper):
        name: ClassVar[str] = "publisher"

        def attach(self, add: Callable[[str], None]) -> None:
            self.add = add

        def first_keys(self) -> Iterable[str]:
            asyncio.get_running_loop().call_later(10, self.add, "all")
            return ()

    publisher = Publisher()
    _Hosting(Informers(_unreachable()), publisher).run(9, 11)
    assert publisher.sweeps == [10.0]


def test_a_reconciler_that_is_stuck_is_named() -> None:
    hosting = _Hosting(Informers(_unreachable()), _Sweeper(), _Stuck())
    hosting.run(STUCK_SECONDS - 10, STUCK_SECONDS + 10)
    stuck = Answer(well=False, text="stuck: has worked on one key for 610 s")
    assert hosting.answers == [(_OK, _OK), (_OK, _OK), (stuck, stuck), (_OK, _OK)]


def test_a_reconciler_says_itself_what_else_is_wrong() -> None:
    sweeper = _Sweeper()
    hosting = _Hosting(Informers(_unreachable()), sweeper)
    sweeper.sick = "the disk is full"
    hosting.look()
    assert [each.text for each in hosting.answers[0]] == ["sweeper: the disk is full"] * 2


def test_a_reconciler_waits_for_what_it_watches_and_silence_is_an_illness_in_the_end() -> None:
    informers = Informers(_unreachable())
    watcher = _Watcher(informers)
    hosting = _Hosting(informers, watcher)
    hosting.run(STUCK_SECONDS - 10, STUCK_SECONDS + 10)
    unlisted = "informers: nodes cannot be listed: GET /api/v1/nodes: the API server does not answer"
    waiting = f"{unlisted} (Connect call failed ('127.0.0.1', 1))\nwatcher: waits until all nodes were listed"
    silent = "informers: nothing was heard of nodes for 600 s"
    assert [(alive.text, ready.text) for alive, ready in hosting.answers] == [
        ("ok", "ok"),
        ("ok", waiting),
        (silent, f"{silent}\n{waiting}"),
        ("ok", "ok"),
    ]
    assert not watcher.sweeps
    failures = hosting.registry.get_sample_value("gpuslice_watch_failures_total", {"resource": "nodes"})
    assert failures is not None
    assert failures > 10


def test_a_failure_of_the_informers_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    informers = Informers(_unreachable())
    hosting = _Hosting(informers, _Sweeper())

    async def fail() -> None:
        raise KeyError("lost")

    monkeypatch.setattr(informers, "run", fail)
    with structlog.testing.capture_logs(), pytest.raises(PartFailedError, match="the part 'informers' failed"):
        fake_time.run(hosting.manager.run())


def test_a_failure_beside_reconciling_is_counted_and_the_reconciler_starts_again() -> None:
    class Careless(_Sweeper):
        name: ClassVar[str] = "careless"
        starts = 0

        def first_keys(self) -> Iterable[str]:
            self.starts += 1
            if self.starts == 1:
                raise KeyError("first")
            return ("all",)

    careless, sweeper = Careless(), _Sweeper()
    hosting = _Hosting(Informers(_unreachable()), careless, sweeper)
    hosting.run(100)
    assert (len(sweeper.sweeps), careless.starts, len(careless.sweeps)) == (4, 2, 4)
    assert hosting.registry.get_sample_value("gpuslice_part_restarts_total", {"part": "careless"}) == 1


def test_a_listener_that_fails_is_shown_until_it_works_again() -> None:
    informers = Informers(_unreachable())
    nodes = informers.informer(NODES, ObjectMetadata, lambda found: found.metadata.name)
    hosting = _Hosting(informers, _Sweeper())

    def refuse_bad(_key: object, _old: object, new: object) -> None:
        if new == "bad":
            raise ValueError("bad")

    nodes.store.listen(refuse_bad)
    with structlog.testing.capture_logs():
        for value in ("bad", "good"):
            nodes.store.put(("", "node"), value)
            hosting.look()
    failing = Answer(well=False, text="informers: a listener of nodes fails: the log says how")
    assert hosting.answers == [(_OK, failing), (_OK, _OK)]
