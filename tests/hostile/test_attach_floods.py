"""A tenant that asks for slots without end and reads no answer: its neighbours are answered as if it were not there."""

from __future__ import annotations

import resource
import signal
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.attach.turns import Turns
from gpuslice.node.sessions import page
from tests.node.conftest import agent, folder, new_agent, tenant
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.node.admin.messages import SessionView
    from tests.node.conftest import StartTenant
    from tests.node.support import AgentProcess

__all__ = ["agent", "folder", "new_agent", "tenant"]  # fixtures of tests/node

FLOOD = 2000


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def ask(session: SessionView, stack: ExitStack) -> socket.socket:
    """A connection with a request in it."""
    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
    connection.settimeout(PATIENCE_SECONDS)
    connection.connect(session.socket)
    request = page.Attach(
        magic=page.ATTACH_MAGIC,
        version=page.VERSION,
        session=session.id.encode(),
        token=session.token.encode(),
    )
    connection.sendall(bytes(request))
    return connection


def status_of(connection: socket.socket) -> int:
    answer = connection.recv(page.ATTACHED_BYTES, socket.MSG_WAITALL)
    return int(page.Attached.from_buffer_copy(answer).status)


def attached(agent: AgentProcess) -> list[str]:
    """The sessions in which slots were given, in that order."""
    return [line["session_id"] for line in agent.audit("attach") if line["result"] == "ok"]


@pytest.mark.usefixtures("_many_descriptors")
def test_a_flood_of_one_session_is_not_served_before_its_neighbours(agent: AgentProcess) -> None:
    flooding, neighbour = agent.create(), agent.create()
    assert agent.process is not None
    with ExitStack() as stack:
        agent.process.send_signal(signal.SIGSTOP)
        try:
            flood = [ask(flooding, stack) for _ in range(FLOOD)]
            last = ask(neighbour, stack)
        finally:
            agent.process.send_signal(signal.SIGCONT)
        assert status_of(last) == page.ATTACH_OK
        eventually(lambda: neighbour.id in attached(agent))
        before = attached(agent).index(neighbour.id)
        assert before < FLOOD / 2, "the neighbour waited for the flood"
        statuses = {status_of(connection) for connection in flood}
    assert statuses == {page.ATTACH_OK, page.ATTACH_BUSY}  # the rest is told, and not left waiting


@pytest.mark.usefixtures("_many_descriptors")
def test_a_session_that_flooded_is_served_again(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    with ExitStack() as stack:
        for _ in range(FLOOD):
            ask(session, stack)
    eventually(lambda: tenant(session).status == page.ATTACH_OK)


def test_each_tenant_has_its_turn_and_its_rate() -> None:
    now = 0.0
    turns: Turns[str] = Turns(most=3, rate=10, burst=2, clock=lambda: now)
    assert [turns.add("a", name) for name in ("a1", "a2", "a3", "a4")] == [True, True, True, False]
    assert turns.add("b", "b1")
    assert (len(turns), turns.longest()) == (4, 3)
    assert [turns.take(), turns.take(), turns.take()] == ["a1", "b1", "a2"]
    assert turns.take() is None  # its burst is over
    assert turns.seconds_to_wait() == pytest.approx(0.1)
    turns.add("b", "b2")
    assert (turns.seconds_to_wait(), turns.take()) == (0, "b2")
    now = 0.15
    assert turns.take() == "a3"
    assert (turns.take(), turns.seconds_to_wait(), len(turns)) == (None, None, 0)


def test_what_must_go_is_the_oldest_of_the_tenant_with_most() -> None:
    turns: Turns[str] = Turns(most=10, rate=1, burst=1)
    for tenant_of, name in (("b", "b1"), ("a", "a1"), ("a", "a2")):
        turns.add(tenant_of, name)
    assert [turns.take_from_longest(), turns.longest(), len(turns)] == ["a1", 1, 2]
