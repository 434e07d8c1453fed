"""/healthz and /readyz name the part that is ill, and have an answer even when the loop has none."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gpuslice.system.supervised.health import Answer, Health, ask_loop, describe
from tests import fake_time

_OK = Answer(well=True, text="ok")


async def test_a_part_is_not_ready_before_it_has_started() -> None:
    health = Health()
    part = health.part("attach", stale_seconds=10)
    assert health.alive() == _OK
    assert health.ready() == Answer(well=False, text="attach: has not started")
    assert health.ready().status == 503
    part.ready()
    assert health.ready() == _OK
    assert health.ready().status == 200


async def test_each_ill_part_is_named_with_its_reason() -> None:
    health = Health()
    for name in ("attach", "publisher", "registration"):
        health.part(name).ready()
    publisher = health.part("sampler")
    publisher.ill("NVML answers nothing")
    health.check("informers", lambda: "pods: nothing was heard for 700 s", liveness=True)
    health.check("certificate", lambda: "there is none yet", liveness=False)

    assert health.ready().text.splitlines() == [
        "sampler: NVML answers nothing",
        "informers: pods: nothing was heard for 700 s",
        "certificate: there is none yet",
    ]
    assert health.alive() == Answer(well=False, text="informers: pods: nothing was heard for 700 s")
    health.remove(publisher)
    assert "sampler" not in health.ready().text


def test_a_heartbeat_that_is_too_old_is_an_illness_until_the_next() -> None:
    async def look() -> None:
        health = Health()
        part = health.part("crosscheck", stale_seconds=30)
        part.ready()
        await asyncio.sleep(30)
        assert health.alive() == _OK
        await asyncio.sleep(10)
        missed = Answer(well=False, text="crosscheck: no heartbeat for 40 s, where 30 s are allowed")
        assert (health.alive(), health.ready()) == (missed, missed)
        part.beat()
        assert (health.alive(), health.ready()) == (_OK, _OK)

    fake_time.run(look())


async def test_a_check_that_fails_is_a_complaint_about_its_part() -> None:
    health = Health()
    health.check("good", lambda: "", liveness=True)
    health.check("bad", lambda: str(1 // 0), liveness=True)
    assert health.alive().text == "bad: cannot be told: ZeroDivisionError: integer division or modulo by zero"


async def test_two_parts_of_one_name_are_refused() -> None:
    health = Health()
    health.part("attach")
    with pytest.raises(ValueError, match="there is a part with the name 'attach': choose another name"):
        health.part("attach")


async def test_another_thread_gets_the_loops_own_answer() -> None:
    loop, health = asyncio.get_running_loop(), Health()
    asked_on: list[int] = []

    def look() -> str:
        asked_on.append(threading.get_ident())
        return "is ill"

    health.check("part", look, liveness=True)
    answer = await asyncio.to_thread(ask_loop, loop, health.alive, seconds=60)
    assert answer == Answer(well=False, text="part: is ill")
    assert asked_on == [threading.get_ident()]


async def test_a_loop_that_is_stuck_is_told_to_the_asker() -> None:
    loop, health, answers = asyncio.get_running_loop(), Health(), list[Answer]()
    asker = threading.Thread(target=lambda: answers.append(ask_loop(loop, health.alive, seconds=0.01)))
    asker.start()
    asker.join()  # this is the loop's own thread, so it is as stuck as can be
    assert answers == [Answer(well=False, text="event loop: gave no answer within 0.01 s, so it is stuck")]


def test_a_loop_that_has_ended_is_told_to_the_asker() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert ask_loop(loop, Health().alive) == Answer(well=False, text="event loop: has ended")


async def test_a_question_that_fails_is_answered() -> None:
    def fail() -> Answer:
        raise KeyError("part")

    loop = asyncio.get_running_loop()
    answer = await asyncio.to_thread(ask_loop, loop, fail, seconds=60)
    assert answer == Answer(well=False, text="health: cannot be told: KeyError: 'part'")


def test_an_error_is_described_in_one_line_with_its_cause() -> None:
    assert describe(KeyError("lost")) == "KeyError: 'lost'"
    assert describe(ValueError("two\nlines")) == "ValueError: two lines"
    assert describe(TimeoutError()) == "TimeoutError"
    group = ExceptionGroup("unhandled errors in a TaskGroup", [ExceptionGroup("inner", [ValueError("a")]), OSError()])
    assert describe(group) == "ValueError: a (and 1 others)"
