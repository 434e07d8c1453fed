"""Clients that send nonsense, half of something, too much or nothing; tenants that damage their pages."""

from __future__ import annotations

import contextlib
import resource
import secrets
import socket
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.node.attach import server
from gpuslice.node.sessions import page
from gpuslice.node.sessions.page import UNIT
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.node.conftest import StartTenant
    from tests.node.support import AgentProcess


def connect(path: Path, *, patient: bool = False) -> socket.socket:
    """A connection. With `patient`, one that waits until the agent has time for it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(None if patient else PATIENCE_SECONDS)
    connection.connect(str(path))
    return connection


def answer_to(path: Path, content: bytes) -> bytes:
    """What comes back until the agent hangs up."""
    with connect(path) as connection:
        received = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(content)
            while part := connection.recv(4096):
                received += part
        return received


@pytest.fixture
def attach_socket(agent: AgentProcess) -> Path:
    return agent.state / "agent.sock"


@pytest.fixture
def still_serving(agent: AgentProcess, tenant: StartTenant) -> Iterator[None]:
    """After the test, a new tenant is served and the agent does not spin."""
    yield
    assert tenant(agent.create()).status == page.ATTACH_OK
    assert agent.is_idle()


@given(st.binary(max_size=2 * page.ATTACH_BYTES))
def test_the_parser_takes_any_bytes(content: bytes) -> None:
    request = server.parse(content)
    assert request is None or bytes(request) == content


@given(st.binary(min_size=page.ATTACH_BYTES - 16, max_size=page.ATTACH_BYTES - 16))
def test_the_parser_takes_any_session_and_token(content: bytes) -> None:
    head = page.ATTACH_MAGIC.to_bytes(8, "little") + page.VERSION.to_bytes(4, "little") + bytes(4)
    request = server.parse(head + content)
    assert request is not None
    assert request.session == content[: page.SESSION_BYTES].partition(b"\0")[0]


@pytest.mark.usefixtures("still_serving")
def test_random_bytes_are_answered_with_an_error(attach_socket: Path) -> None:
    # A real socket for each example: the agent's reading is tested, not a copy of it.
    @settings(max_examples=200, deadline=None)
    @given(st.binary(min_size=1, max_size=512))
    def send(content: bytes) -> None:
        received = answer_to(attach_socket, b"\xff" + content)
        # With more behind the request the kernel may drop the answer together with the connection.
        if received:
            answer = page.Attached.from_buffer_copy(received)
            assert (answer.magic, answer.status) == (page.ATTACH_MAGIC, page.ATTACH_BROKEN)

    send()


@pytest.mark.usefixtures("still_serving")
def test_any_request_with_the_right_head_is_answered(agent: AgentProcess, attach_socket: Path) -> None:
    agent.create(name="known")
    head = page.ATTACH_MAGIC.to_bytes(8, "little")

    @settings(max_examples=200, deadline=None)
    @given(
        st.sampled_from([0, 1, 2, 2**32 - 1]),
        st.sampled_from([0, 1, 2**32 - 1]),
        st.one_of(st.just(b"known"), st.binary(max_size=page.SESSION_BYTES)),
        st.binary(max_size=page.TOKEN_BYTES),
    )
    def send(version: int, flags: int, session: bytes, token: bytes) -> None:
        content = head + version.to_bytes(4, "little") + flags.to_bytes(4, "little")
        content += session.ljust(page.SESSION_BYTES, b"\0") + token.ljust(page.TOKEN_BYTES, b"\0")
        answer = page.Attached.from_buffer_copy(answer_to(attach_socket, content))
        assert answer.status in (page.ATTACH_DENIED, page.ATTACH_UNKNOWN, page.ATTACH_BROKEN)
        assert answer.message

    send()


@pytest.mark.usefixtures("still_serving")
def test_half_a_message_is_waited_for_and_then_dropped(attach_socket: Path, agent: AgentProcess) -> None:
    request = page.Attach(magic=page.ATTACH_MAGIC, version=page.VERSION, session=b"x", token=b"y")
    with connect(attach_socket) as slow, connect(attach_socket) as stuck, connect(attach_socket) as silent:
        slow.sendall(bytes(request)[:100])
        stuck.sendall(bytes(request)[:100])
        time.sleep(0.2)
        slow.sendall(bytes(request)[100:])
        assert page.Attached.from_buffer_copy(slow.recv(4096)).status == page.ATTACH_UNKNOWN
        assert agent.client().list() == []
        # The other two are let go.
        assert stuck.recv(1) == b""
        assert silent.recv(1) == b""


def test_ten_thousand_connections_keep_no_tenant_out(new_agent: AgentProcess, tenant: StartTenant) -> None:
    new_agent.options = ["--max-pending", "500"]
    agent = new_agent.start()
    session = agent.create()
    before = tenant(session)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(count):
            stack.enter_context(connect(agent.state / "agent.sock", patient=True))
        assert tenant(session).slot == 1
        assert before.do("charge", 0, 5 * UNIT) == ""
        assert agent.client().show(session.id).gpus[0].held_bytes == 5 * UNIT
        assert agent.descriptors() < 700


def test_an_agent_without_descriptors_serves_those_it_has(new_agent: AgentProcess, tenant: StartTenant) -> None:
    new_agent.limit_descriptors = 100
    agent = new_agent.start()
    session = agent.create()
    with contextlib.ExitStack() as stack:
        tenants = [tenant(session)]
        while tenants[-1].status == page.ATTACH_OK:
            tenants.append(tenant(session))
            assert len(tenants) < 100
        assert tenants[-1].status == page.ATTACH_BROKEN
        assert "descriptors" in tenants[-1].message
        for _ in range(200):
            stack.enter_context(connect(agent.state / "agent.sock"))
        tenants[0].do("charge", 0, UNIT)
        tenants[0].kill()
        # The place of the one that ended is free, in spite of 200 that say nothing.
        eventually(lambda: tenant(session).status == page.ATTACH_OK)
        assert agent.is_idle()


@pytest.mark.usefixtures("still_serving")
def test_garbage_in_the_cells_is_not_believed(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    vandal = tenant(session)
    vandal.do("charge", 0, 10 * UNIT)
    vandal.do("garbage")
    gpu = agent.client().show(session.id).gpus[0]
    assert 0 <= gpu.held_bytes <= page.BYTES_MASK
    vandal.kill()
    eventually(lambda: agent.client().show(session.id).gpus[0].held_bytes == 0)
    assert agent.client().show(session.id).gpus[0].recovered_bytes <= page.BYTES_MASK
    tenant(session).do("charge", 0, 10 * UNIT)
    assert agent.client().show(session.id).gpus[0].held_bytes == 10 * UNIT


def test_more_spare_than_was_charged_is_nothing_held_and_no_less(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    honest, liar = tenant(session), tenant(session)
    honest.do("charge", 0, 10 * UNIT)
    liar.do("charge", 0, 5 * UNIT)
    liar.do("keep", 0, 9 * UNIT)
    assert agent.client().show(session.id).gpus[0].held_bytes == 10 * UNIT


def test_what_a_tenant_takes_back_was_counted(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    liar = tenant(session)
    for _ in range(3):
        liar.do("deny", 0)
    liar.do("peak", 0, 1000)
    assert agent.client().show(session.id).denials == 3
    liar.do("garbage")
    liar.do("attach")
    shown = agent.client().show(session.id)
    assert shown.denials >= 3
    assert shown.gpus[0].peak_bytes >= 1000


@given(st.binary(max_size=300))
def test_the_admin_parser_takes_any_line(line: bytes) -> None:
    from gpuslice.node.admin import server
    from gpuslice.node.errors import AgentError

    with contextlib.suppress(AgentError):
        server.decode(line)


@given(
    st.dictionaries(
        st.sampled_from(["version", "token", "operation", "limit", "gpus", "name", "ttl_seconds", "id", "force", "?"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.lists(st.integers())),
    )
)
def test_the_admin_parser_takes_any_object(message: dict[str, object]) -> None:
    import json

    from gpuslice.node.admin import server
    from gpuslice.node.errors import AgentError

    with contextlib.suppress(AgentError):
        server.decode(json.dumps(message).encode())


@pytest.mark.usefixtures("still_serving")
def test_nonsense_at_the_admin_socket_is_answered(agent: AgentProcess) -> None:
    path = agent.state / "admin.sock"
    for content in (b"\n", b"{}\n", b"null\n", b"\xff\xfe\n", b"[" * 5000 + b"\n", b"{" * 100_000, b"x" * 100_000):
        with connect(path) as client:
            client.sendall(content)
            assert client.makefile("rb").readline().startswith(b'{"ok":false'), content[:20]
    assert answer_to(path, b'{"operation":"list"') == b""  # half a line, dropped in time
    with connect(path) as other:
        other.sendall(secrets.token_bytes(64).replace(b"\n", b""))
        assert agent.client().list() == []
