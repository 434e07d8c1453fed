"""Users of the machine who do not know the agent's token, at the socket that every user can reach."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.node.admin.client import AgentClient
from gpuslice.node.admin.connection_limits import ALL, ONE_USER, OTHERS, ConnectionLimits
from gpuslice.node.errors import AgentError
from tests.native.inside import python_path
from tests.node.conftest import agent, as_root, folder, new_agent
from tests.node.support import clean_environment, read_line
from tests.node.test_admin import AS_NOBODY
from tests.node.test_hostile import answer_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.support import AgentProcess

__all__ = ["agent", "as_root", "folder", "new_agent"]  # fixtures of tests/node

WRONG_TOKEN = b'{"operation":"status","version":1,"token":"no"}\n'

#: Keeps 300 connections open as another user, for as long as the agent lets it, and opens those anew that were closed.
CROWD = """
import os, socket, sys, time
os.setgid(61002)
os.setuid(61002)
connections = {}
def connect(number):
    connections[number] = socket.socket(socket.AF_UNIX)
    connections[number].connect(sys.argv[1])
for number in range(300):
    connect(number)
print("ready", flush=True)
for _ in range(600):
    for number, connection in connections.items():
        try:
            if sys.argv[2] == "talk":
                connection.send(sys.argv[3].encode(), socket.MSG_DONTWAIT)
            while connection.recv(65536, socket.MSG_DONTWAIT):
                pass
            connect(number)
        except BlockingIOError:
            pass
        except OSError:
            connect(number)
    time.sleep(0.05)
"""


@contextmanager
def crowd(agent: AgentProcess, manner: str) -> Iterator[None]:
    command = [sys.executable, "-c", CROWD, str(agent.client().path), manner, WRONG_TOKEN.decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert read_line(process) == "ready"
            yield
            assert process.poll() is None
        finally:
            process.kill()


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("manner", ["talk", "hold"])
def test_one_user_cannot_keep_the_others_out(agent: AgentProcess, manner: str) -> None:
    session = agent.create()
    path = agent.client().path
    token = (agent.state / "token").read_text().strip()
    command = [sys.executable, "-c", AS_NOBODY, str(path), token, "show", session.id]
    environment = clean_environment(**python_path())
    with crowd(agent, manner):
        for _ in range(10):
            with AgentClient(path, token) as client:
                assert client.status().sessions == 1
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        shown: dict[str, Any] = json.loads(done.stdout)
        assert shown["id"] == session.id


@pytest.mark.parametrize("line", [WRONG_TOKEN, b"{}\n", b"nonsense\n", b'{"operation":"status","version":99}\n'])
def test_a_client_without_the_token_has_one_line(agent: AgentProcess, line: bytes) -> None:
    answers = answer_to(agent.client().path, 3 * line).splitlines()
    assert len(answers) == 1
    assert answers[0].startswith(b'{"ok":false')


def test_a_request_that_is_refused_costs_no_client_its_connection(agent: AgentProcess) -> None:
    client = agent.client()
    token = (agent.state / "token").read_text().strip()
    refused = json.dumps({"operation": "show", "token": token, "id": "absent"}).encode() + b"\n"
    assert answer_to(client.path, 3 * refused).count(b"unknown_session") == 3
    for _ in range(3):
        with AgentClient(client.path, "wrong") as other, pytest.raises(AgentError, match="token"):
            other.status()


def test_root_and_the_agent_s_user_have_room_when_all_others_have_none() -> None:
    limits = ConnectionLimits()
    users = 0
    opened = []
    while limits.has_room(61000 + users):
        one = 0
        while limits.has_room(61000 + users):
            opened.append(limits.counted(61000 + users))
            opened[-1].__enter__()
            one += 1
        assert one <= ONE_USER
        users += 1
    assert len(opened) == OTHERS
    while limits.has_room(0):
        opened.append(limits.counted(0))
        opened[-1].__enter__()
    assert len(opened) == ALL
    for connection in opened:
        connection.__exit__(None, None, None)
    assert limits.has_room(61000)
