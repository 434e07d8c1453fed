"""Tenants that turn what they were given against the agent: nothing of theirs makes it wait or fills the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from gpuslice.node.sessions import cells, cells_recovery, page
from gpuslice.node.sessions.cells_recovery import CellsSearch, Wanted
from gpuslice.node.sessions.page import UNIT
from tests.native.inside import python_path
from tests.node.conftest import agent, as_root, folder, new_agent, tenant
from tests.node.support import AgentProcess, clean_environment, read_line, start_tenant
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.node.admin.messages import SessionView
    from tests.node.conftest import StartTenant
    from tests.node.support import TenantProcess

__all__ = ["agent", "as_root", "folder", "new_agent", "tenant"]  # fixtures of tests/node

HOLDER = Path(__file__).with_name("holder.py")
RESIZES = 5
HOUR = 3600
FLOOD = 300
GRACE = 3
BURIED = 20
DECOYS = 2000
CHILDREN = page.SLOTS + 400
CONTAINER_CAPABILITIES = (
    *("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service"),
    *("net_raw", "sys_chroot", "mknod", "audit_write", "setfcap", "sys_ptrace", "ipc_lock"),
)
_KEEPER = """
import fcntl, os, resource, sys
from gpuslice.node.sessions import cells
place, decoys = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
made = cells.make_cells(1)
fcntl.fcntl(made._descriptor, fcntl.F_DUPFD_CLOEXEC, place)
made.close()
decoy = os.memfd_create(cells.LINK.removeprefix("/memfd:").removesuffix(" (deleted)"))
for number in range(300, 300 + decoys):
    os.dup2(decoy, number)
if not decoys:
    os.close(decoy)
print(made.inode, flush=True)
sys.stdin.read()
"""


class StartHolder(Protocol):
    """The fixture `holder`."""

    def __call__(self, session: SessionView) -> TenantProcess: ...


@pytest.fixture
def holder() -> Iterator[StartHolder]:
    """Starts hostile tenants that end with the test."""
    started: list[TenantProcess] = []

    def start(session: SessionView) -> TenantProcess:
        started.append(start_tenant(session, program=HOLDER))
        assert started[-1].status == page.ATTACH_OK
        return started[-1]

    yield start
    for process in started:
        process.close()


def serves(agent: AgentProcess, neighbour: TenantProcess, session: SessionView) -> None:
    """That the neighbour's session is as if there were no other."""
    before = agent.client().show(session.id).gpus[0].held_bytes
    neighbour.do("charge", 0, 3 * UNIT)
    assert agent.client().show(session.id).gpus[0].held_bytes == before + 3 * UNIT
    beat = neighbour.control()[3]
    eventually(lambda: neighbour.control()[3] > beat, "the heartbeat goes on")


def let_in(tenant: StartTenant, session: SessionView) -> TenantProcess:
    """A tenant of a session that is being taken up."""
    tried: list[TenantProcess] = []

    def attached() -> bool:
        tried.append(tenant(session))
        return tried[-1].status == page.ATTACH_OK

    eventually(attached, "the session goes on with new cells")
    return tried[-1]


# ---- leases and locks ----


def test_a_lease_on_control_keeps_no_next_agent_waiting_and_no_session_forgets(
    agent: AgentProcess, tenant: StartTenant, holder: StartHolder
) -> None:
    """Each lease would hold up an open of the file by 45 seconds. The sessions get other pages and keep their books."""
    hostile = [agent.create(name=f"hostile-{number}", grace_seconds=GRACE) for number in range(3)]
    holders = [holder(session) for session in hostile]
    for each in holders:
        each.do("charge", 0, 10 * UNIT)
    session = agent.create(name="neighbour")
    neighbour = tenant(session)
    agent.kill()
    assert [each.do("lease") for each in holders] == ["leased"] * 3
    agent.start()
    serves(agent, neighbour, session)
    assert tenant(session).slot == 1
    assert not agent.audit("quarantine")
    replaced = {(line["session_id"], line["error_code"]) for line in agent.audit("replace_control")}
    assert replaced == {(each.id, "control_leased") for each in hostile}
    # Until the last word of their page is too old to allocate by, none comes in beside them: also not by a next start.
    beat = holders[0].control()[3]
    agent.kill()
    agent.start()
    newcomer = let_in(tenant, hostile[0])
    assert newcomer.slot == 1
    assert newcomer.control()[2] == 2, "it sums what those hold that came before"
    assert newcomer.control()[3] > beat + GRACE * 10**9
    assert holders[0].control()[3] == beat, "they are told nothing any more, and get none"
    view = agent.client().show(hostile[0].id)
    assert view.gpus[0].held_bytes == 10 * UNIT
    assert {process.pid for process in view.processes} == {holders[0].pid, newcomer.pid}
    serves(agent, newcomer, hostile[0])
    serves(agent, neighbour, session)


@pytest.mark.usefixtures("as_root")
def test_roots_of_containers_do_not_own_the_control_page(agent: AgentProcess, tenant: StartTenant) -> None:
    """An owner can take leases."""
    session = agent.create()
    control = agent.state / "sessions" / session.id / "control"
    assert control.stat().st_uid > 2**31
    os.chown(control, 0, 0)  # as earlier agents left it
    agent.kill()
    agent.start()
    assert control.stat().st_uid > 2**31
    assert control.stat().st_mode & 0o777 == 0o600
    serves(agent, tenant(session), session)


def test_a_lease_on_the_cells_costs_the_tenant_its_own(
    agent: AgentProcess, tenant: StartTenant, holder: StartHolder
) -> None:
    session, other = agent.create(name="hostile"), agent.create(name="neighbour")
    hostile, neighbour = holder(session), tenant(other)
    agent.kill()
    assert hostile.do("lease-cells") == "leased"
    agent.start()
    serves(agent, neighbour, other)
    serves(agent, let_in(tenant, session), session)


def test_locks_on_what_a_tenant_has_do_not_matter(
    agent: AgentProcess, tenant: StartTenant, holder: StartHolder
) -> None:
    session = agent.create()
    hostile, neighbour = holder(session), tenant(session)
    hostile.do("lock")
    serves(agent, neighbour, session)
    agent.kill()
    agent.start()
    serves(agent, neighbour, session)
    assert len(agent.client().show(session.id).processes) == 2


@pytest.mark.usefixtures("as_root")
def test_root_of_a_container_is_not_asked_before_the_agent_opens(agent: AgentProcess, tenant: StartTenant) -> None:
    """An open that waits for a tenant's word would stop the agent; fanotify asks for SYS_ADMIN, which no slice has."""
    session, other = agent.create(name="hostile"), agent.create(name="neighbour")
    neighbour = tenant(other)
    wrapper = ("setpriv", "--bounding-set", f"-all,{','.join(f'+{name}' for name in CONTAINER_CAPABILITIES)}")
    hostile = start_tenant(session, program=HOLDER, wrapper=wrapper)
    try:
        assert hostile.do("watch").startswith("Operation not permitted, ")
        assert tenant(session).slot == 1
        serves(agent, neighbour, other)
        agent.kill()
        agent.start()
        serves(agent, neighbour, other)
    finally:
        hostile.close()


def test_a_fork_bomb_takes_the_slots_of_its_own_session_alone(
    agent: AgentProcess, tenant: StartTenant, holder: StartHolder
) -> None:
    session, other = agent.create(name="hostile"), agent.create(name="neighbour")
    hostile, neighbour = holder(session), tenant(other)
    hostile.do("multiply", CHILDREN)
    serves(agent, neighbour, other)
    eventually(lambda: len(agent.client().show(session.id).processes) == page.SLOTS, "all slots are taken")
    assert tenant(session).status != page.ATTACH_OK
    assert tenant(other).status == page.ATTACH_OK
    agent.kill()
    agent.start()
    serves(agent, neighbour, other)
    hostile.kill()
    eventually(lambda: not agent.client().show(session.id).processes, "no process of it is left")
    assert let_in(tenant, session).slot == 0


# ---- the cells' length ----


@pytest.mark.parametrize("size", [0, 64, 3 << 30])
def test_no_tenant_changes_the_length_of_the_cells(agent: AgentProcess, tenant: StartTenant, size: int) -> None:
    session = agent.create()
    vandal, other = tenant(session), tenant(session)
    vandal.do("charge", 0, 10 * UNIT)
    assert vandal.do("resize", size).split(", ") == ["Operation not permitted"] * RESIZES
    serves(agent, other, session)
    vandal.kill()
    eventually(lambda: agent.client().show(session.id).gpus[0].held_bytes == 3 * UNIT)


def test_an_observer_has_the_cells_to_read(agent: AgentProcess, holder: StartHolder) -> None:
    session = agent.create()
    hostile = holder(session)
    assert hostile.do("observe") == str(page.NO_SLOT)
    assert not list(agent.state.rglob("cells")), "nothing of them is on the disk"


# ---- cells that the next agent is not to find ----


@pytest.mark.parametrize("trick", ["hide", "bury 5000"])
def test_cells_that_a_tenant_hides_are_replaced_and_it_gets_no_more(
    agent: AgentProcess, tenant: StartTenant, holder: StartHolder, trick: str
) -> None:
    session, other = agent.create(name="hostile"), agent.create(name="neighbour")
    hostile, neighbour = holder(session), tenant(other)
    hostile.do("charge", 0, 10 * UNIT)
    hostile.do(*trick.split())
    agent.kill()
    agent.start()
    serves(agent, neighbour, other)
    eventually(lambda: agent.audit("replace_cells"), "the search ends")
    (line,) = agent.audit("replace_cells")
    assert (line["session_id"], line["error_code"], line["pids"]) == ("hostile", "cells_lost", [hostile.pid])
    honest = let_in(tenant, session)
    assert honest.slot == 1
    serves(agent, honest, session)
    if trick != "hide":
        assert hostile.do("current") == "False"
    # Those that have the new cells keep them over the next restart.
    agent.kill()
    agent.start()
    assert honest.pid in [process.pid for process in agent.client().show("hostile").processes]
    serves(agent, honest, session)


def test_decoys_do_not_keep_the_agent_from_the_cells(agent: AgentProcess, holder: StartHolder) -> None:
    session = agent.create()
    hostile = holder(session)
    hostile.do("charge", 0, 10 * UNIT)
    hostile.do("bury", 1000)
    agent.kill()
    agent.start()
    eventually(lambda: agent.client().show(session.id).gpus[0].held_bytes == 10 * UNIT)
    assert hostile.do("current") == "True"
    assert not agent.audit("replace_cells")


def test_what_only_has_the_name_of_cells_is_not_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A FIFO stands for every file whose open waits: of FUSE, of NFS, of a device."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    opened: list[str] = []
    real_open = os.open

    def watched(path: str, flags: int, *arguments: int) -> int:
        if flags & os.O_PATH == 0 and "fdinfo" not in path:
            opened.append(path)
        return real_open(path, flags, *arguments)

    monkeypatch.setattr(cells, "LINK", str(fifo))
    monkeypatch.setattr(os, "open", watched)
    try:
        wanted = Wanted("any", os.fstat(held).st_ino, 1, (os.getpid(),))
        assert cells_recovery.find(wanted, CellsSearch()._mount) is None
    finally:
        os.close(held)
    assert opened == []


@pytest.mark.parametrize("place", [300, 2000])
def test_sessions_that_bury_their_cells_keep_no_other_from_being_found(place: int) -> None:
    """However many they are: a program that hides nothing is found before any of them is given up."""
    with keeping_cells(place, 0) as (neighbour, inode), keeping_cells(5000, DECOYS) as (hostile, _):
        search = CellsSearch()
        buried = [Wanted(f"hostile-{number}", 1, 1, (hostile,) * 4) for number in range(BURIED)]
        search.start([*buried, Wanted("neighbour", inode, 1, (neighbour,))])
        results = [search.result(PATIENCE_SECONDS) for _ in range(BURIED + 1)]
    first = results[0]
    assert first is not None
    assert (first.session_id, first.descriptor is not None) == ("neighbour", True)
    assert [result for result in results[1:] if result is None or result.descriptor is not None] == []
    assert first.descriptor is not None
    assert os.fstat(first.descriptor).st_ino == inode
    os.close(first.descriptor)


@contextmanager
def keeping_cells(place: int, decoys: int) -> Iterator[tuple[int, int]]:
    """A process with cells at that descriptor, behind so many others that look like them; its number, and theirs."""
    program = [sys.executable, "-c", _KEEPER, str(place), str(decoys)]
    process = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment(**python_path())
    )
    with process:
        try:
            yield process.pid, int(read_line(process))
        finally:
            process.kill()


# ---- descriptors sent to the agent, and connections kept from it ----


def test_a_socket_that_is_slow_to_close_is_not_closed_by_the_agent(
    agent: AgentProcess, tenant: StartTenant, holder: StartHolder
) -> None:
    session = agent.create()
    hostile, neighbour = holder(session), tenant(session)
    hostile.do("linger", HOUR)
    serves(agent, neighbour, session)


def test_connections_never_take_the_descriptors_that_giving_back_needs(
    new_agent: AgentProcess, tenant: StartTenant, holder: StartHolder
) -> None:
    new_agent.limit_descriptors = 160
    agent = new_agent.start()
    session = agent.create(name="neighbour")
    neighbour, hostile = tenant(session), holder(agent.create(name="hostile"))
    agent.client().status()
    for number in range(FLOOD):
        hostile.do("half")
        if number % 20 == 0:
            made = agent.create(name=f"session-{number}")
            agent.client().release(made.id)
            assert agent.descriptors() < 140
    serves(agent, neighbour, session)
    assert "out of descriptors" not in agent.log.read_text()
