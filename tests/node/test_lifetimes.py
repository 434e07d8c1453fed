"""When sessions end: their time is over, their owner is gone, or the one they were private to."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.admin.client import AgentUnreachableError
from gpuslice.node.errors import AgentError
from gpuslice.node.sessions import page
from gpuslice.node.sessions.page import UNIT
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.conftest import StartTenant
    from tests.node.support import AgentProcess

#: A tenant takes a while to start on a busy machine, and attaches before that.
TTL_SECONDS = 5.0


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing but live."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def exists(agent: AgentProcess, name: str) -> bool:
    return any(session.id == name for session in agent.client().list())


def test_an_expired_session_denies_and_is_released_with_its_last_process(
    agent: AgentProcess, tenant: StartTenant
) -> None:
    session = agent.create(ttl_seconds=TTL_SECONDS)
    first, second = tenant(session), tenant(session)
    first.do("charge", 0, 100 * UNIT)
    eventually(lambda: first.control()[0] == page.EXPIRED)
    shown = agent.client().show(session.id)
    assert (shown.state, shown.expires_in, shown.gpus[0].held_bytes) == ("expired", 0.0, 100 * UNIT)
    # A newcomer still attaches: the page tells it why it gets nothing, and it can say so.
    assert tenant(session).status == page.ATTACH_OK
    first.kill()
    assert exists(agent, session.id)
    second.kill()
    eventually(lambda: len(agent.client().show(session.id).processes) == 1)
    agent.client().release(session.id, force=True)
    assert [line["session_id"] for line in agent.audit("expire")] == [session.id]


def test_an_expired_session_without_processes_is_released(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create(ttl_seconds=TTL_SECONDS)
    last = tenant(session)
    eventually(lambda: last.control()[0] == page.EXPIRED)
    last.kill()
    eventually(lambda: not exists(agent, session.id))
    assert agent.audit("release")[0]["reason"] == "expired"


def test_a_session_expires_while_no_agent_runs(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create(ttl_seconds=TTL_SECONDS)
    holder = tenant(session)
    agent.kill()
    time.sleep(TTL_SECONDS)
    agent.start()
    eventually(lambda: holder.control()[0] == page.EXPIRED)


def test_ttl_kill_ends_the_processes(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create(ttl_seconds=TTL_SECONDS, ttl_kill=True)
    doomed = tenant(session)
    assert doomed.process.wait(30) == -9
    eventually(lambda: not exists(agent, session.id))
    assert [line["pid"] for line in agent.audit("kill")] == [doomed.pid]


def test_a_session_ends_with_its_owner(agent: AgentProcess, owner: subprocess.Popen[bytes]) -> None:
    session = agent.create(owner_pid=owner.pid)
    assert agent.client().show(session.id).owner.pid == owner.pid
    agent.kill()
    agent.start()
    assert exists(agent, session.id)
    owner.kill()
    eventually(lambda: not exists(agent, session.id))


def test_a_session_outlives_its_owner_while_processes_are_in_it(
    agent: AgentProcess, tenant: StartTenant, owner: subprocess.Popen[bytes]
) -> None:
    session = agent.create(owner_pid=owner.pid)
    running = tenant(session)
    owner.kill()
    owner.wait()
    running.do("charge", 0, 5 * UNIT)
    assert exists(agent, session.id)
    running.kill()
    eventually(lambda: not exists(agent, session.id))
    assert agent.audit("release")[0]["reason"] == "owner_gone"


def test_an_owner_that_died_while_no_agent_ran_is_noticed(agent: AgentProcess, owner: subprocess.Popen[bytes]) -> None:
    session = agent.create(owner_pid=owner.pid)
    agent.kill()
    owner.kill()
    owner.wait()
    agent.start()
    eventually(lambda: not exists(agent, session.id))


def test_a_session_without_owner_stays(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    tenant(session).kill()
    agent.kill()
    agent.start()
    assert exists(agent, session.id)


def test_a_private_agent_ends_after_its_process_and_cleans_up(
    new_agent: AgentProcess, tenant: StartTenant, owner: subprocess.Popen[bytes]
) -> None:
    new_agent.options = ["--private-to", str(owner.pid)]
    agent = new_agent.start()
    running = tenant(agent.create())
    owner.kill()
    owner.wait()
    running.do("charge", 0, 5 * UNIT)
    assert agent.client().list()
    running.kill()
    assert agent.process is not None
    assert agent.process.wait(30) == 0
    agent.stop()
    assert not agent.state.exists()
    with pytest.raises((AgentUnreachableError, AgentError)):
        agent.client().list()
