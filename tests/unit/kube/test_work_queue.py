"""The work queue: each key once, never twice at a time, none lost, and those that fail later and later."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import structlog
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prometheus_client import CollectorRegistry

from gpuslice.kube.errors import UnreachableError
from gpuslice.kube.work_queue import QueueEnded, WorkQueue, WorkQueueMetrics
from tests import fake_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def _queue(registry: CollectorRegistry | None = None, **waits: float) -> WorkQueue[str]:
    return WorkQueue("test", WorkQueueMetrics(registry or CollectorRegistry()), **waits)


class _Model(RuleBasedStateMachine):
    """The queue against a model that is a plain list, a set and a table of times."""

    keys = st.sampled_from("abcd")

    def __init__(self) -> None:
        super().__init__()
        self.loop = fake_time.FakeTimeLoop()
        self.queue = _queue()
        self.waiting: list[str] = []
        self.again: set[str] = set()
        self.under_work: set[str] = set()
        self.due: dict[str, float] = {}
        self.failures: Counter[str] = Counter()
        self.ended = False
        self.moments = itertools.count()

    def teardown(self) -> None:
        self.loop.close()

    def _do(self, action: Callable[[], object]) -> object:
        async def run() -> object:
            return action()

        return self.loop.run_until_complete(run())

    def _added(self, key: str) -> None:
        if self.ended:
            return
        if key in self.under_work:
            self.again.add(key)
        elif key not in self.waiting:
            self.waiting.append(key)

    @rule(key=keys)
    def add(self, key: str) -> None:
        self._do(lambda: self.queue.add(key))
        self._added(key)

    @rule(key=keys, seconds=st.integers(0, 5))
    def add_after(self, key: str, seconds: int) -> None:
        # Never two at the same moment, nor with the end of a wait: their order would be anything.
        delay = seconds + 0.5 + next(self.moments) * 1e-4
        self._do(lambda: self.queue.add_after(key, delay))
        self._delayed(key, delay)

    def _delayed(self, key: str, delay: float) -> None:
        if not self.ended:
            self.due[key] = min(self.due.get(key, float("inf")), self.loop.time() + delay)

    @rule(key=keys)
    def add_rate_limited(self, key: str) -> None:
        delay = self._do(lambda: self.queue.add_rate_limited(key))
        assert isinstance(delay, float)
        ceiling = min(0.2 * 2 ** self.failures[key], 60.0)
        assert ceiling / 2 <= delay <= ceiling
        self.failures[key] += 1
        self._delayed(key, delay)

    @rule(key=keys)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        del self.failures[key]

    @rule(seconds=st.integers(1, 4))
    def wait(self, seconds: int) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        over = sorted((due, key) for key, due in self.due.items() if due <= self.loop.time())
        for _, key in over:
            del self.due[key]
            self._added(key)

    @precondition(lambda self: self.waiting)
    @rule()
    def get(self) -> None:
        key = self.waiting.pop(0)
        assert self.loop.run_until_complete(self.queue.get()) == key
        assert key not in self.under_work
        self.under_work.add(key)

    @precondition(lambda self: self.ended and not self.waiting)
    @rule()
    def get_after_the_end(self) -> None:
        with pytest.raises(QueueEnded):
            self.loop.run_until_complete(self.queue.get())

    @precondition(lambda self: self.under_work)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.under_work)))
        self._do(lambda: self.queue.done(key))
        self.under_work.discard(key)
        if key in self.again:
            self.again.discard(key)
            self.waiting.append(key)

    @precondition(lambda self: not self.ended)
    @rule(drain=st.booleans(), meant=st.integers(0, 9))
    def end(self, drain: bool, meant: int) -> None:  # noqa: FBT001 - drawn
        if meant:  # rarely, or nothing else would be tried
            return
        self._do(lambda: self.queue.end(drain=drain))
        self.ended = True
        self.due.clear()
        if not drain:
            self.waiting.clear()
            self.again.clear()

    @initialize()
    def start(self) -> None:
        assert len(self.queue) == 0

    @invariant()
    def agrees(self) -> None:
        assert list(self.queue._waiting) == self.waiting
        assert set(self.queue._under_work) == self.under_work
        assert set(self.queue._dirty) == {*self.waiting, *self.again}
        assert {key: self.queue.failures(key) for key in "abcd"} == {key: self.failures[key] for key in "abcd"}


TestModel = _Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(), workers=st.integers(1, 4))
def test_nothing_is_lost_and_no_key_is_worked_on_twice_at_a_time(seed: int, workers: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test's
    queue, at_work = _queue(), set[str]()
    added: dict[str, float] = {}
    started: dict[str, float] = {}

    async def work(key: str) -> float | None:
        assert key not in at_work, "two workers have the same key"
        at_work.add(key)
        assert len(at_work) <= workers
        started[key] = asyncio.get_running_loop().time()
        await asyncio.sleep(chance.choice((0, 0.01, 0.3)))
        at_work.discard(key)
        if chance.random() < 0.3:
            raise UnreachableError("not now")
        return chance.choice((None, None, 0.2))

    async def produce() -> None:
        for _ in range(100):
            key = chance.choice("abcdefgh")
            if chance.random() < 0.8:
                queue.add(key)
                added[key] = asyncio.get_running_loop().time()
            else:
                queue.add_after(key, chance.random())
            await asyncio.sleep(chance.choice((0, 0, 0.05)))
        queue.end(drain=True)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.run(work, workers=workers))
            group.create_task(produce())

    with structlog.testing.capture_logs():
        fake_time.run(run())
    assert not at_work
    assert all(started[key] >= moment for key, moment in added.items()), "work began after the last time it was added"


def _run(queue: WorkQueue[str], work: Callable[[str], Awaitable[float | None]], seconds: float, *keys: str) -> None:
    """Workers for that time, with these keys at the start."""

    async def run() -> None:
        for key in keys:
            queue.add(key)
        working = asyncio.ensure_future(queue.run(work))
        await asyncio.sleep(seconds)
        assert not working.done(), "a worker ended"
        working.cancel()
        await asyncio.wait((working,))

    fake_time.run(run())


def test_a_key_that_fails_comes_back_later_each_time_and_others_do_not_wait_for_it() -> None:
    queue, tries = _queue(shortest=1, longest=8), list[float]()
    good: list[float] = []

    async def work(key: str) -> float | None:
        now = asyncio.get_running_loop().time()
        if key == "good":
            good.append(now)
            return 1.0
        tries.append(now)
        if len(tries) == 8:
            return None
        raise ValueError("broken")

    with structlog.testing.capture_logs() as logged:
        _run(queue, work, 99.5, "bad", "good")
    waits = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert len(tries) == 8
    assert all(top / 2 <= wait <= top for wait, top in zip(waits, (1, 2, 4, 8, 8, 8, 8), strict=True))
    assert len(good) == 100, "once a second"
    assert queue.failures("bad") == 0
    assert [entry["failures"] for entry in logged] == [1, 2, 3, 4, 5, 6, 7]
    assert {(entry["key"], entry["error"], entry["queue"]) for entry in logged} == {
        ("bad", "ValueError: broken", "test")
    }
    assert all(isinstance(entry["exc_info"], ValueError) for entry in logged)


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError("within"), UnreachableError("gone")])
def test_whatever_work_raises_the_worker_goes_on(error: BaseException) -> None:
    queue, seen = _queue(), list[str]()

    async def work(key: str) -> None:
        seen.append(key)
        if key == "bad" and len(seen) == 1:
            raise error

    with structlog.testing.capture_logs() as logged:
        _run(queue, work, 10, "bad", "good")
    assert seen == ["bad", "good", "bad"]
    assert (logged[0]["exc_info"] is None) == isinstance(error, UnreachableError)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_earliest_of_several_wishes_for_later_counts_on_every_loop(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> None:
        queue = _queue()
        queue.add_after("key", 3600)
        queue.add_after("key", 0.01)
        queue.add_after("key", 7200)
        async with asyncio.timeout(60):
            assert await queue.get() == "key"
        assert not queue._delayed
        queue.add_after("key", 3600)
        queue.end(drain=True)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


async def test_a_getter_that_gives_up_takes_nothing_with_it() -> None:
    queue = _queue()
    getting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    getting.cancel()
    queue.add("key")
    with pytest.raises(asyncio.CancelledError):
        await getting
    assert await queue.get() == "key"


async def test_a_queue_that_ends_drains_or_drops_and_its_workers_end() -> None:
    for drain, expected in ((True, ["one", "two", "one"]), (False, ["one"])):
        queue, seen = _queue(), list[str]()

        async def work(key: str, queue: WorkQueue[str] = queue, seen: list[str] = seen, drain: bool = drain) -> None:  # noqa: FBT001
            seen.append(key)
            if len(seen) == 1:
                queue.add("one")
                queue.add_after("later", 0.001)
                queue.end(drain=drain)
                queue.add("refused")

        queue.add("one")
        queue.add("two")
        await queue.run(work, workers=2)
        assert seen == expected


async def test_series_are_there_with_zero_and_count_what_happens() -> None:
    registry = CollectorRegistry()
    queue = _queue(registry)

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"gpuslice_workqueue_{name}", {"queue": "test"})

    names = ("depth", "adds_total", "retries_total", "longest_running_seconds", "queued_seconds_count")
    assert [value(name) for name in names] == [0, 0, 0, 0, 0]
    for _ in range(2):
        queue.add("key")
    queue.add("other")
    assert (value("depth"), value("adds_total")) == (2, 2)
    key = await queue.get()
    assert (value("depth"), value("queued_seconds_count"), value("work_seconds_count")) == (1, 1, 0)
    await asyncio.sleep(0.01)
    assert (value("longest_running_seconds") or 0) > 0
    queue.add_rate_limited(key)
    queue.done(key)
    assert (value("retries_total"), value("work_seconds_count"), value("longest_running_seconds")) == (1, 1, 0)
    queue.end(drain=False)
