"""Tenants that do what is audited as often as they can: the log stays small, and says what it does not have."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import structlog

from gpuslice.node.audit import Audit
from gpuslice.node.sessions import page
from tests.node.conftest import agent, folder, new_agent
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.node.support import AgentProcess

__all__ = ["agent", "folder", "new_agent"]  # fixtures of tests/node

ATTACHES = 600


def attach(agent: AgentProcess, session: str, token: str) -> None:
    """Attaches, and detaches at once."""
    request = page.Attach(
        magic=page.ATTACH_MAGIC, version=page.VERSION, flags=0, session=session.encode(), token=token.encode()
    )
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect(str(agent.state / "agent.sock"))
        connection.sendall(bytes(request))
        answer, descriptors, _, _ = socket.recv_fds(connection, page.ATTACHED_BYTES, 2)
        for descriptor in descriptors:
            socket.close(descriptor)
        assert page.Attached.from_buffer_copy(answer).status == page.ATTACH_OK


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def accounted(events: list[dict[str, Any]], operation: str) -> int:
    """The lines of that operation, and those that were left out."""
    return sum(event.get("lines", 1) for event in events if event["operation"] == operation)


def test_attaching_over_and_over_does_not_fill_the_log(agent: AgentProcess) -> None:
    flooding, quiet = agent.create(), agent.create()
    for _ in range(ATTACHES):
        attach(agent, flooding.id, flooding.token)
    attach(agent, quiet.id, quiet.token)

    def events(session: str) -> list[dict[str, Any]]:
        return [event for event in agent.audit() if event["session_id"] == session]

    eventually(lambda: accounted(events(flooding.id), "attach") == ATTACHES, "all attaches are lines or counted")
    assert [event for event in events(flooding.id) if event["result"] == "left_out"]
    eventually(lambda: [event["operation"] for event in events(quiet.id)] == ["create", "attach", "detach"])


async def test_lines_of_one_kind_and_session_are_bounded_and_the_rest_counted(folder: Path) -> None:
    audit = Audit(folder / "audit.jsonl", structlog.get_logger())
    try:
        for number in range(2000):
            audit.write("attach", session_id="flood", pid=number)
            audit.write("detach", session_id="flood", pid=number)
            audit.write("create", session_id=f"session-{number}")
            audit.write("attach", session_id=f"made-up-{number}", result="denied")
        audit.write("attach", session_id="quiet")
        # Also if no line comes after.
        await asyncio.to_thread(eventually, lambda: accounted(read(folder / "audit.jsonl"), "refusal") > 0)
    finally:
        audit.close()
    events = read(folder / "audit.jsonl")
    assert accounted(events, "create") == 2000
    assert [event for event in events if event["session_id"] == "quiet"]
    flood = [event for event in events if event["session_id"] == "flood"]
    assert (accounted(flood, "attach"), accounted(flood, "detach")) == (2000, 2000)
    denied = [event for event in events if event["result"] == "denied"]
    assert len(denied) + accounted(events, "refusal") == 2000
    assert len(flood) + len(denied) < 2000


def test_what_was_left_out_is_told_at_the_end(folder: Path) -> None:
    audit = Audit(folder / "audit.jsonl", structlog.get_logger())
    for number in range(100):
        audit.write("attach", session_id="flood", pid=number)
    audit.close()
    assert accounted(read(folder / "audit.jsonl"), "attach") == 100
