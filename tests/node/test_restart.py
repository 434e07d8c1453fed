"""The agent is killed at any moment and started again: nothing is lost, and no tenant notices."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest

from gpuslice.model.sessions import SessionState
from gpuslice.node.sessions import page
from gpuslice.node.sessions.cells import Cells
from gpuslice.node.sessions.cells_recovery import CellsSearch, Wanted, find
from gpuslice.node.sessions.page import UNIT
from gpuslice.node.sessions.record import GpuRecord, SessionRecord
from gpuslice.node.sessions.session import Process, Session, write_session
from gpuslice.system.processes import ProcessIdentity
from tests.node.support import GPU, OTHER_GPU, AgentProcess
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuslice.node.admin.messages import SessionView
    from tests.node.conftest import StartTenant
    from tests.node.support import TenantProcess


def what_is_kept(session: SessionView) -> SessionView:
    """A view without what time changes."""
    return msgspec.structs.replace(session, expires_in=None)


def test_everything_is_as_before(agent: AgentProcess, tenant: StartTenant) -> None:
    sessions = [agent.create("1GiB", gpus=[GPU, OTHER_GPU], ttl_seconds=1000, name=f"s{n}") for n in range(3)]
    tenants = [tenant(session) for session in sessions for _ in range(2)]
    for number, each in enumerate(tenants):
        each.do("charge", number % 2, (1000 + number) * UNIT)
        each.do("deny", 0)
        each.do("peak", 1, 5000 + number)
    tenants[0].kill()
    eventually(lambda: len(agent.client().show("s0").processes) == 1)
    before = [what_is_kept(session) for session in agent.client().list()]
    cell = tenants[1].do("cell", 1)
    agent.kill()
    assert tenants[1].do("charge", 0, 50 * UNIT) == ""  # goes on without an agent
    agent.start()
    after = agent.client().list()
    assert sum(session.allocations for session in after) == sum(session.allocations for session in before) + 1
    tenants[1].do("free", 0, 50 * UNIT)
    after = [what_is_kept(session) for session in agent.client().list()]
    assert tenants[1].do("cell", 1) == cell
    for old, new in zip(before, after, strict=True):
        assert (new.token, new.processes, new.gpus[1], new.denials) == (
            old.token, old.processes, old.gpus[1], old.denials,
        )  # fmt: skip
        assert new.gpus[0].held_bytes == old.gpus[0].held_bytes
    # The next process and the next death are handled as ever.
    assert tenant(sessions[0]).slot == 0
    tenants[2].kill()
    eventually(lambda: len(agent.client().show("s1").processes) == 1)
    assert agent.client().show("s1").gpus[0].recovered_bytes == 1002 * UNIT


def test_a_process_that_died_meanwhile_is_cleared(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    survivor, victim = tenant(session), tenant(session)
    survivor.do("charge", 0, UNIT)
    victim.do("charge", 0, 1 << 30)
    agent.kill()
    victim.kill()
    agent.start()
    shown = agent.client().show(session.id)
    assert [process.pid for process in shown.processes] == [survivor.pid]
    assert (shown.gpus[0].held_bytes, shown.gpus[0].recovered_bytes, shown.allocations) == (UNIT, 1 << 30, 2)
    assert [(line["pid"], line["bytes"]) for line in agent.audit("recover")] == [(victim.pid, 1 << 30)]


def test_exec_meanwhile_is_noticed(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    runner = tenant(session)
    runner.do("charge", 0, 4 * UNIT)
    agent.kill()
    runner.say("exec")
    agent.start()
    eventually(lambda: not agent.client().show(session.id).processes)
    assert runner.process.poll() is None


def test_a_clean_stop_keeps_sessions_and_removes_sockets(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    running = tenant(session)
    running.do("charge", 0, 3 * UNIT)
    assert agent.stop() == 0
    assert not list(agent.state.glob("*.sock"))
    agent.start()
    assert agent.client().show(session.id).gpus[0].held_bytes == 3 * UNIT
    running.do("free", 0, 3 * UNIT)


def test_restarts_under_load_lose_nothing(agent: AgentProcess, tenant: StartTenant) -> None:
    """Tenants come, allocate and are killed while the agent is killed again and again."""
    chance = random.Random(4)  # noqa: S311 - the same every time
    session = agent.create("1GiB", name="load")
    steady = tenant(session)
    steady.do("charge", 0, 7 * UNIT)
    living: dict[int, TenantProcess] = {}
    allocations = 1
    for number in range(100):
        agent.kill()
        steady.do("charge", 0, 0)
        allocations += 1
        for pid, each in list(living.items()):
            if chance.random() < 0.5:
                each.kill()
                del living[pid]
        agent.start()
        if number % 4:
            continue
        newcomer = tenant(session)
        assert newcomer.status == page.ATTACH_OK
        size = chance.randrange(1, 1 << 11) * UNIT
        newcomer.do("charge", 0, size)
        living[newcomer.pid] = newcomer
        allocations += 1
        time.sleep(chance.random() * 0.02)
    shown = agent.client().show("load")
    assert shown.allocations == allocations
    assert {process.pid for process in shown.processes} == {steady.pid, *living}
    for each in living.values():
        each.kill()
    eventually(lambda: len(agent.client().show("load").processes) == 1)
    assert agent.client().show("load").gpus[0].held_bytes == 7 * UNIT


def test_the_heartbeat_stops_and_goes_on(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create(grace_seconds=0)
    watching = tenant(session)
    first = watching.control()[3]
    eventually(lambda: watching.control()[3] > first)
    agent.kill()
    last = watching.control()[3]
    time.sleep(0.6)
    assert watching.control()[3] == last
    agent.start()
    assert watching.control()[3] > last


# ---- stopped between two writes ----


class Kept(NamedTuple):
    """A session's folder, and its cells as a process of it would keep them."""

    folder: Path
    cells: int

    def open(self) -> Session:
        """The session as a next agent takes it up."""
        session = Session(self.folder)
        session.processes[0] = Process(session, 0, DEAD, -1, session.attached.cells_inode)
        wanted = Wanted(session.id, session.attached.cells_inode, 2, (os.getpid(),))
        found = find(wanted, CellsSearch()._mount)
        assert found is not None
        session.settle(Cells(found, 2))
        session.processes.clear()
        return session


@pytest.fixture
def session_files(folder: Path) -> Iterator[Kept]:
    """A session with one process in slot 0 that holds 100 units on the first GPU."""
    made = folder / "crash"
    made.mkdir()
    record = SessionRecord(
        id="crash", name="crash", token="t" * 43, owner_uid=0, owner_gid=0,
        gpus=[GpuRecord(GPU, 1000), GpuRecord(OTHER_GPU, 1000)], state=SessionState.ACTIVE,
        created=0.0, boot_id="", grace_seconds=10,
    )  # fmt: skip
    write_session(made, record, 0)
    session = Session(made)
    session.settle(None)
    session.give_slot(DEAD, -1)
    cells = session.cells.open_for_tenant(observer=False)
    os.write(cells, bytes(page.Cell(charged=103 | 3 << page.SPARE_SHIFT, granted=4, denied=1, peak=90)))
    session.close()
    yield Kept(made, cells)
    os.close(cells)


DEAD = ProcessIdentity(4242, 17)


def fold_and_read(kept: Kept) -> tuple[int, ...]:
    """What a next agent makes of it: recovered, allocations, denials, peak; and nothing is left in slot 0."""
    session = kept.open()
    for slot, identity in session.attached.entries().items():
        session.fold(slot, identity)
    assert session.attached.entries() == {}
    assert not any(session.cells.read_one(0, 0).mark)
    totals = session.attached.totals[0]
    session.close()
    return totals.recovered_bytes, totals.allocations, totals.denials, totals.peak_bytes


ONCE = (100 * UNIT, 4, 1, 90)


def test_folding_twice_counts_once(session_files: Kept) -> None:
    assert fold_and_read(session_files) == ONCE
    assert fold_and_read(session_files) == ONCE


@pytest.mark.parametrize("step", ["clear", "write_entry"])
def test_an_agent_killed_while_folding_counts_once(
    session_files: Kept, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_files.open()
    part = session.cells if step == "clear" else session.attached

    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(part, step, killed)
    with pytest.raises(KeyboardInterrupt):
        session.fold(0, DEAD)
    session.close()
    assert fold_and_read(session_files) == ONCE


def test_the_same_process_in_the_same_slot_counts_again(session_files: Kept) -> None:
    session = session_files.open()
    session.fold(0, DEAD)
    session.give_slot(DEAD, -1)
    os.pwrite(session_files.cells, bytes(page.Cell(charged=1, granted=1)), 0)
    session.close()
    recovered, allocations, *_ = fold_and_read(session_files)
    assert (recovered, allocations) == (101 * UNIT, 5)
