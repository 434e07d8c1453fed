"""Death at any moment, of tenants and of the agent: nothing leaks, nothing is handed out twice, no process is stuck."""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from tests.interposer.node import MIB, OUT_OF_MEMORY, Tenant
from tests.waiting import eventually

if TYPE_CHECKING:
    from types import TracebackType

    from tests.interposer.conftest import Build
    from tests.interposer.node import Node

LIMIT = 128 * MIB
KILLS = 1000
BATCH = 125
RESTARTS = 100


class Watch:
    """Looks at what NVML counts, all the time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most = 0
        self.looks = 0

    def __enter__(self) -> Self:
        self._node.used()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.is_set():
            self.most = max(self.most, self._node.used()[0])
            self.looks += 1
            time.sleep(0.005)


def test_a_thousand_kills_at_random_moments_among_eight_allocating_processes(node: Node, build: Build) -> None:
    session = node.session(LIMIT)
    driver = node.machine.machine.libraries / "libcuda.so.1"
    storm = Tenant(node.start([build("storm.c", driver), "1"], session), greets=False)
    with Watch(node) as watch:
        for _ in range(KILLS // BATCH):
            assert storm.ask(str(BATCH)) == f"{BATCH} {BATCH + 8} 8 0"
            eventually(lambda: node.held(session) == [0], "what dead processes held is given back")
            assert node.client.show(session.id).processes == []
    assert watch.looks > 100
    assert LIMIT // 2 < watch.most <= LIMIT
    assert int(storm.ask("-1")) > KILLS
    node.expect_used(0)
    tenant = node.tenant(session)
    tenant.fill("linear", LIMIT, times=1)
    assert tenant.take("linear", 512) == OUT_OF_MEMORY


def test_a_killed_tenants_memory_is_anothers_at_once(node: Node) -> None:
    session = node.session(LIMIT)
    survivor = node.tenant(session)
    for _ in range(20):
        victim = node.tenant(session)
        victim.fill("linear", LIMIT // 2, times=1)
        victim.fill("physical", LIMIT // 2, times=1)
        assert survivor.take("linear", 512) == OUT_OF_MEMORY
        victim.kill()
        eventually(lambda: survivor.take("linear", LIMIT) == 0, "the whole limit")
        assert survivor.give("free", survivor.blocks - 1) == 0


def test_without_its_agent_a_tenant_goes_on_within_the_grace_is_denied_after_it_and_goes_on_again(node: Node) -> None:
    session = node.session(LIMIT, grace_seconds=1.5)
    tenant = node.tenant(session)
    tenant.fill("linear", 8 * MIB, times=1)
    assert node.agent is not None
    node.agent.kill()
    tenant.fill("linear", 8 * MIB, times=1)
    eventually(lambda: tenant.take("linear", 512) == OUT_OF_MEMORY, "denied after the grace")
    assert tenant.give("free", 0) == 0  # giving back goes on
    node.agent.start()
    eventually(lambda: tenant.take("linear", 8 * MIB) == 0, "goes on when it is back")
    assert node.held(session)[0] == node.used()[0]
    lines = tenant.close().splitlines()
    assert len(lines) == 1
    assert "gave no sign of life" in lines[0]


def test_with_no_grace_a_tenant_is_denied_when_its_agent_is_gone(node: Node) -> None:
    session = node.session(LIMIT, grace_seconds=0)
    tenant = node.tenant(session)
    assert node.agent is not None
    eventually(lambda: tenant.take("linear", MIB) == 0, "granted while it lives")
    node.agent.kill()
    eventually(lambda: tenant.take("linear", MIB) == OUT_OF_MEMORY, "denied")


def test_a_hundred_restarts_of_the_agent_under_load_lose_nothing(node: Node, build: Build) -> None:
    session = node.session(LIMIT)
    holder = node.tenant(session)
    holder.fill("linear", 32 * MIB, times=1)
    driver = node.machine.machine.libraries / "libcuda.so.1"
    # Each process that finds no agent says so; this test does not read it.
    process = node.start([build("storm.c", driver), "2", "1000"], session, errors=subprocess.DEVNULL)
    storm = Tenant(process, greets=False)
    answers: list[str] = []
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            answers.append(storm.ask("10"))

    load = threading.Thread(target=work)
    assert node.agent is not None
    with Watch(node) as watch, ExitStack() as stack:
        load.start()
        stack.callback(load.join)
        stack.callback(over.set)
        for _ in range(RESTARTS):
            node.agent.kill()
            node.agent.start()
            assert [view.id for view in node.client.list()] == [session.id]
            assert node.held(session)[0] >= 32 * MIB
    assert watch.most <= LIMIT
    assert len(answers) > 5
    assert set(answers) == {"10 18 8 0"}
    eventually(lambda: node.held(session) == [32 * MIB], "only the holder is left")
    assert [process.pid for process in node.client.show(session.id).processes] == [holder.process.pid]
    holder.fill("linear", LIMIT - 32 * MIB, times=1)
    assert holder.take("linear", 512) == OUT_OF_MEMORY
    node.expect_used(LIMIT)


def test_an_agent_that_was_away_while_a_tenant_died_clears_up_when_it_is_back(node: Node) -> None:
    session = node.session(LIMIT)
    victim, survivor = node.tenant(session), node.tenant(session)
    victim.fill("linear", LIMIT, times=1)
    assert node.agent is not None
    node.agent.kill()
    victim.kill()
    assert survivor.take("linear", 512) == OUT_OF_MEMORY
    node.agent.start()
    eventually(lambda: survivor.take("linear", LIMIT) == 0, "what the dead one held")


def test_allocations_and_denials_are_counted_exactly_without_a_question_to_the_agent(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    tenant.fill("linear", 512, times=300)
    for _ in range(7):
        assert tenant.take("linear", LIMIT) == OUT_OF_MEMORY
    view = node.client.show(session.id)
    assert (view.allocations, view.denials) == (300, 7)
    tenant.kill()
    eventually(lambda: node.client.show(session.id).processes == [], "it is gone")
    view = node.client.show(session.id)
    assert (view.allocations, view.denials) == (300, 7)
