"""A part that fails is logged, counted, shown by health, and restarted or the end of the process, as was chosen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import structlog
from prometheus_client import CollectorRegistry

from gpuslice.system.supervised.health import Answer, Health
from gpuslice.system.supervised.supervision import END_PROCESS, PartFailedError, Restart, SupervisionMetrics, Supervisor
from tests import fake_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any


class _Process:
    """A supervisor, and what others see of it."""

    def __init__(self) -> None:
        self.health = Health()
        self.registry = CollectorRegistry()
        self.supervisor = Supervisor(self.health, SupervisionMetrics(self.registry))

    def number(self, name: str, part: str) -> float | None:
        return self.registry.get_sample_value(f"gpuslice_part_{name}", {"part": part})


async def _forever() -> None:
    await asyncio.Event().wait()


async def _fail() -> None:
    raise ValueError("broken")


async def _return() -> None:
    pass


async def _cancelled_within() -> None:
    """It waits for something that another cancels."""
    inner = asyncio.ensure_future(_forever())
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner


@pytest.mark.parametrize(
    ("work", "shown"),
    [
        (_fail, "ValueError: broken"),
        (_return, "PartEndedError: its work ended, and should not"),
        (_cancelled_within, "PartEndedError: its work was cancelled from within"),
    ],
)
def test_a_part_that_fails_is_restarted_logged_counted_and_named(
    work: Callable[[], Coroutine[Any, Any, None]], shown: str
) -> None:
    process, answers = _Process(), list[Answer]()

    async def main() -> None:
        await asyncio.sleep(0.1)
        answers.append(process.health.ready())
        await asyncio.sleep(600)

    process.supervisor.add("publisher", work, Restart(shortest=1, longest=60))
    process.supervisor.add("other", _forever, END_PROCESS)
    with structlog.testing.capture_logs() as logged:
        fake_time.run(process.supervisor.run(main()))

    assert [answer.well for answer in answers] == [False]
    assert answers[0].text.startswith("publisher: failed, and starts again within ")
    assert answers[0].text.endswith(shown)
    assert "\n" not in answers[0].text, "the other part is well"
    failures = process.number("failures_total", "publisher")
    # 1 + 2 + 4 + ... + 60 s, each at least half of it: 600 s are not enough for thirty.
    assert failures is not None
    assert 10 < failures < 30
    assert process.number("restarts_total", "publisher") in (failures, failures - 1)
    assert {(entry["part"], entry["event"]) for entry in logged} == {
        ("publisher", "a part failed, and is started again")
    }
    assert len(logged) == failures
    assert all(entry["exc_info"] for entry in logged)
    assert process.number("failures_total", "other") == 0


def test_a_part_that_must_not_fail_ends_the_process_and_says_which() -> None:
    process = _Process()
    stopped: list[str] = []

    async def until_stopped(name: str) -> None:
        try:
            await _forever()
        finally:
            stopped.append(name)

    async def fail_later() -> None:
        await asyncio.sleep(1)
        raise ValueError("broken")

    process.supervisor.add("first", lambda: until_stopped("first"), END_PROCESS)
    process.supervisor.add("attach", fail_later, END_PROCESS)
    process.supervisor.add("last", lambda: until_stopped("last"), Restart())
    with structlog.testing.capture_logs() as logged, pytest.raises(PartFailedError) as failure:
        fake_time.run(process.supervisor.run(until_stopped("main")))

    assert str(failure.value) == "the part 'attach' failed, and the process ends with it: ValueError: broken"
    assert isinstance(failure.value.__cause__, ValueError)
    assert stopped == ["main", "last", "first"]
    assert process.number("failures_total", "attach") == 1
    assert [entry["event"] for entry in logged] == ["a part failed, and the process ends"]


def test_one_that_recovers_is_ready_again_and_its_backoff_begins_anew() -> None:
    process, starts = _Process(), list[float]()

    async def works_now_and_then() -> None:
        now = asyncio.get_running_loop().time()
        starts.append(now)
        await asyncio.sleep(1000 if len(starts) == 6 else 0)
        raise ValueError("broken")

    async def main() -> None:
        await asyncio.sleep(500)
        assert process.health.ready() == Answer(well=True, text="ok")
        assert process.number("running", "part") == 1
        await asyncio.sleep(600)

    process.supervisor.add("part", works_now_and_then, Restart(shortest=1, longest=60))
    with structlog.testing.capture_logs():
        fake_time.run(process.supervisor.run(main()))

    assert 8 <= starts[5] - starts[4] <= 16
    assert len(starts) >= 7
    assert 1000.5 <= starts[6] - starts[5] <= 1001


def test_work_that_has_an_end_is_no_failure_and_leaves_nothing_behind() -> None:
    process = _Process()
    process.supervisor.add("drain", _return, END_PROCESS, endless=False)

    async def main() -> None:
        await asyncio.sleep(1)
        assert process.health.ready().well

    fake_time.run(process.supervisor.run(main()))
    assert process.number("failures_total", "drain") == 0
    assert process.number("running", "drain") == 0


def test_series_are_there_with_zero_before_anything_happens() -> None:
    process = _Process()
    process.supervisor.add("part", _forever, Restart())
    assert [process.number(name, "part") for name in ("failures_total", "restarts_total", "running")] == [0, 0, 0]


@pytest.mark.parametrize("ending", ["main ends", "main fails", "cancelled"])
def test_parts_are_stopped_in_the_opposite_order_each_before_the_next(ending: str) -> None:
    process, told = _Process(), list[str]()

    async def slow_to_stop(name: str) -> None:
        told.append(f"{name} started")
        try:
            await _forever()
        finally:
            await asyncio.sleep(1)
            told.append(f"{name} stopped")

    async def main() -> None:
        await asyncio.sleep(1)
        if ending == "main fails":
            raise KeyError("main")
        if ending == "cancelled":
            await _forever()

    async def run() -> None:
        for name in ("one", "two", "three"):
            process.supervisor.add(name, lambda name=name: slow_to_stop(name), Restart())  # type: ignore[misc]
        running = asyncio.ensure_future(process.supervisor.run(main()))
        await asyncio.sleep(5)
        if ending == "cancelled":
            running.cancel()
        expected = {"main ends": None, "main fails": KeyError, "cancelled": asyncio.CancelledError}[ending]
        if expected is None:
            await running
        else:
            with pytest.raises(expected):
                await running

    fake_time.run(run())
    names = ("one", "two", "three")
    assert told == [f"{name} started" for name in names] + [f"{name} stopped" for name in reversed(names)]
    assert process.health.ready().well, "what has stopped is no part any more"


def test_a_part_that_is_added_later_is_started_at_once() -> None:
    process = _Process()

    async def main() -> None:
        started = asyncio.Event()

        async def part() -> None:
            started.set()
            await _forever()

        process.supervisor.add("late", part, Restart())
        async with asyncio.timeout(1):
            await started.wait()

    fake_time.run(process.supervisor.run(main()))


def test_a_part_that_keeps_failing_loses_its_heartbeat_and_with_it_the_process() -> None:
    process, answers = _Process(), list[Answer]()

    async def main() -> None:
        for _ in range(2):
            await asyncio.sleep(60)
            answers.append(process.health.alive())

    process.supervisor.add("part", _fail, Restart(), stale_seconds=90)
    with structlog.testing.capture_logs():
        fake_time.run(process.supervisor.run(main()))
    assert [answer.well for answer in answers] == [True, False]
    assert answers[1].text.startswith("part: no heartbeat for 120 s, where 90 s are allowed; failed")


def test_supervisors_nest_and_the_inner_ones_failure_is_the_parts() -> None:
    process = _Process()

    async def backend() -> None:
        inner = Supervisor(process.health, SupervisionMetrics(CollectorRegistry()))
        inner.add("plugin", _fail, END_PROCESS)
        await inner.run(_forever())

    async def main(wait: Awaitable[None]) -> None:
        await wait

    process.supervisor.add("backend", backend, Restart())
    with structlog.testing.capture_logs() as logged:
        fake_time.run(process.supervisor.run(main(asyncio.sleep(0.4))))
    assert [entry["part"] for entry in logged] == ["plugin", "backend"]
