"""Managing sessions: what is refused, and to whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.node.admin.client import AgentClient, AgentUnreachableError
from gpuslice.node.admin.messages import GpuShare
from gpuslice.node.errors import AgentError
from gpuslice.node.sessions import page
from tests.native.inside import python_path
from tests.node.support import GPU, OTHER_GPU, AgentProcess, clean_environment

if TYPE_CHECKING:
    from pathlib import Path

    from tests.node.conftest import StartTenant

NOBODY = 65534

AS_NOBODY = """
import json, os, sys
from pathlib import Path
from gpuslice.node.admin.client import AgentClient
from gpuslice.node.errors import AgentError
path, token, *request = sys.argv[1:]
os.setgid(65534)
os.setuid(65534)
client = AgentClient(Path(path), token)
try:
    result = getattr(client, request[0])(*request[1:])
    print(json.dumps({"id": result.id, "token": result.token, "uid": result.owner.uid}))
except AgentError as error:
    print(json.dumps({"code": error.code}))
client.close()
"""


def test_a_session_has_what_was_asked_for(agent: AgentProcess) -> None:
    session = agent.client().create(
        gpus=[GpuShare(GPU, "1GiB"), GpuShare(OTHER_GPU, 4096, 30)], name="mine", ttl_seconds=100, on_breach="kill"
    )
    assert (session.id, session.name, session.state) == ("mine", "mine", "active")
    assert [(gpu.limit_bytes, gpu.core_percent) for gpu in session.gpus] == [(1 << 30, 0), (4096, 30)]
    assert session.expires_in is not None
    assert 50 < session.expires_in <= 100
    assert (session.owner.uid, session.owner.pid) == (os.getuid(), None)
    assert len(session.token) >= 32
    assert session.socket == str(agent.state / "agent.sock")
    assert [shown.id for shown in agent.client().list()] == ["mine"]
    record = agent.state / "sessions" / "mine" / "session.json"
    assert record.stat().st_mode & 0o777 == 0o600
    assert record.parent.parent.stat().st_mode & 0o777 == 0o700


def test_names_are_made_unique_and_ids_are_readable(agent: AgentProcess) -> None:
    assert agent.create(name="job").id == "job"
    with pytest.raises(AgentError, match="there is a session 'job' already: choose another name, or end it"):
        agent.create(name="job")
    first, second = agent.create(), agent.create()
    assert first.id != second.id
    assert first.id.replace("-", "").isalpha()
    assert first.token != second.token


def test_a_limit_changes_under_a_running_program(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create("1GiB", gpus=[GPU, OTHER_GPU])
    running = tenant(session)
    agent.client().limit(session.id, "2GiB")
    assert running.control()[1] == 2 << 30
    shown = agent.client().limit(session.id, "512MiB", gpu=OTHER_GPU)
    assert [gpu.limit_bytes for gpu in shown.gpus] == [2 << 30, 512 << 20]
    agent.kill()
    agent.start()
    assert [gpu.limit_bytes for gpu in agent.client().show(session.id).gpus] == [2 << 30, 512 << 20]


def test_a_session_in_use_is_released_only_by_force(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    running = tenant(session)
    with pytest.raises(AgentError, match=rf"has 1 process\(es\): {running.pid}") as refused:
        agent.client().release(session.id)
    assert refused.value.code == "in_use"
    assert agent.client().release(session.id, force=True).state == "released"
    assert running.control()[0] == page.RELEASED
    assert not (agent.state / "sessions" / session.id).exists()
    assert tenant(session).status == page.ATTACH_UNKNOWN
    assert agent.client().list() == []


@pytest.mark.parametrize(
    ("options", "code", "field", "text"),
    [
        ({"limit": "lots"}, "bad_limit", "limit", "'lots' is not an amount of bytes"),
        ({"limit": 0}, "bad_limit", "limit", "leaves no memory at all"),
        ({"limit": "4"}, "bad_limit", "limit", "a limit of 4 B is too small: write at least 1MiB, or 4GiB if that"),
        ({"limit": None}, "no_limit", "limit", "no limit is given"),
        ({"limit": "25%"}, "no_nvml", "limit", "give the limit in bytes"),
        ({"limit": 2**48}, "bad_limit", "limit", "more than the GPU has"),
        ({"limit": "1GiB", "gpus": []}, "no_gpus", "gpus", "has no GPU that the agent can see"),
        ({"limit": "1GiB", "gpus": ["0"]}, "no_gpus", "gpus", "name the GPU by its whole UUID"),
        ({"limit": "1GiB", "gpus": [GPU, GPU]}, "gpu_twice", "gpus", "named twice"),
        ({"limit": "1GiB", "gpus": [f"{GPU[:-2]}{n:02}" for n in range(17)]}, "too_many_gpus", "gpus", "at most 16"),
        ({"limit": "1GiB", "name": "No Way"}, "bad_name", "name", "cannot name a session"),
        ({"limit": "1GiB", "name": "../../etc"}, "bad_name", "name", "cannot name a session"),
        ({"limit": "1GiB", "ttl_seconds": 0}, "bad_ttl", "ttl_seconds", "above 0"),
        ({"limit": "1GiB", "ttl_seconds": 1e12}, "bad_ttl", "ttl_seconds", "above 0"),
        ({"limit": "1GiB", "grace_seconds": -1}, "bad_grace", "grace_seconds", "negative"),
        ({"limit": "1GiB", "on_breach": "shout"}, "bad_on_breach", "on_breach", "not report or kill"),
        ({"limit": "1GiB", "owner_pid": 2**40}, "bad_owner", "owner_pid", "no process"),
        ({"limit": "1GiB", "gpus": [GpuShare(GPU, None, 101)]}, "bad_cores", "core_percent", "101%"),
    ],
)
def test_an_error_names_the_field(
    agent: AgentProcess, options: dict[str, Any], code: str, field: str, text: str
) -> None:
    with pytest.raises(AgentError) as refused:
        agent.client().create(**{"gpus": [GPU]} | options)
    assert (refused.value.code, refused.value.field) == (code, field)
    assert text in str(refused.value)
    assert list((agent.state / "sessions").iterdir()) == []


def test_an_unknown_session_is_an_error(agent: AgentProcess) -> None:
    client = agent.client()
    for ask in (client.show, client.release, lambda name: client.limit(name, "1GiB")):
        with pytest.raises(AgentError, match="there is no session 'absent'"):
            ask("absent")


def test_a_wrong_token_manages_nothing(agent: AgentProcess) -> None:
    session = agent.create()
    for token in ("", "wrong", session.token):
        with AgentClient(agent.client().path, token) as client, pytest.raises(AgentError) as refused:
            client.list()
        assert refused.value.code == "wrong_token"
    assert {(line["result"], line["error_code"]) for line in agent.audit("list")} == {("refused", "wrong_token")}


def test_the_token_may_come_from_the_environment(new_agent: AgentProcess) -> None:
    new_agent.environment = clean_environment(GPUSLICE_IPC_TOKEN="supersecret")  # noqa: S106 - the README's example
    agent = new_agent.start()
    assert not (agent.state / "token").exists()
    assert agent.client().list() == []
    with AgentClient(agent.client().path, "other") as client, pytest.raises(AgentError):
        client.list()


@pytest.mark.usefixtures("as_root")
def test_other_users_have_their_own_sessions_only(agent: AgentProcess) -> None:
    mine = agent.create(name="mine")
    token = (agent.state / "token").read_text().strip()

    def ask(*request: str) -> dict[str, Any]:
        command = [sys.executable, "-c", AS_NOBODY, str(agent.client().path), token, *request]
        environment = clean_environment(**python_path())
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    assert ask("show", mine.id) == {"id": mine.id, "token": "", "uid": 0}
    assert ask("release", mine.id) == {"code": "not_yours"}
    assert ask("limit", mine.id, "1MiB") == {"code": "not_yours"}
    assert agent.client().show(mine.id).gpus[0].limit_bytes == 1 << 30


def test_no_agent_is_said_with_the_remedy(folder: Path) -> None:
    client = AgentClient.discover(folder / "nowhere", {})
    with pytest.raises(AgentUnreachableError, match="start one with `gpuslice agent`"):
        client.status()


def test_a_connection_that_was_closed_is_made_again(agent: AgentProcess) -> None:
    client = agent.client()
    assert client.status().pid == agent.pid
    agent.kill()
    agent.start()
    assert client.status().pid == agent.pid
    assert client.status().version
