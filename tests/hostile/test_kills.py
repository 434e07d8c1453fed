"""Which processes a session ends, and which it never ends, whatever its owner and his neighbours do."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest

from gpuslice.cli.run import preload
from gpuslice.node.admin.messages import SessionView
from tests.hostile.test_attribution import AS_NOBODY, MIB, NOBODY, PROGRAM, breaches, cgroup, looked_for_a_while
from tests.native.inside import python_path
from tests.node.conftest import agent, as_root, folder, new_agent, tenant
from tests.node.test_breach import User, gpu_agent, machine, user
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from tests.node.conftest import StartTenant
    from tests.node.support import AgentProcess
    from tests.node.test_breach import StartUser
    from tests.support import Simulated, SimulatedMachine

__all__ = [
    "agent",
    "as_root",
    "folder",
    "gpu_agent",
    "machine",
    "new_agent",
    "tenant",
    "user",
]  # fixtures of tests/node

CREATE = """
import os, sys
from pathlib import Path
import msgspec
from gpuslice.node.admin.client import AgentClient
state, user, gpu, options = sys.argv[1:]
os.environ["GPUSLICE_IPC_TOKEN"] = Path(state, "token").read_text().strip()
os.setgid(int(user))
os.setuid(int(user))
session = AgentClient.discover(Path(state), os.environ).create("300MiB", gpus=[gpu], **msgspec.json.decode(options))
sys.stdout.buffer.write(msgspec.json.encode(session))
"""


def session_of_nobody(agent: AgentProcess, gpu: str, **options: object) -> SessionView:
    """A session that a user without rights made."""
    agent.client()
    encoded = msgspec.json.encode(options).decode()
    command = [sys.executable, "-c", CREATE, str(agent.state), NOBODY, gpu, encoded]
    environment = {**agent.environment, **python_path()}
    made = subprocess.run(command, check=True, capture_output=True, env=environment, timeout=PATIENCE_SECONDS)
    return msgspec.json.decode(made.stdout, type=SessionView)


def killed(agent: AgentProcess) -> list[tuple[int, str, str]]:
    return [(line["pid"], line["result"], line["error_code"]) for line in agent.audit("kill")]


# ---- processes that are not in their session yet ----


def test_a_program_that_started_while_the_agent_was_away_is_not_ended(
    gpu_agent: AgentProcess, machine: SimulatedMachine
) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    gpu_agent.kill()
    inside = preload.environment(session, machine.environment())
    honest = User(machine.start([sys.executable, PROGRAM], **{**inside, **python_path()}))
    try:
        gpu_agent.start()
        looked_for_a_while(gpu_agent)
        assert honest.process.poll() is None
        honest.do("take", MIB)  # it asks again, and is let in
        looked_for_a_while(gpu_agent)
        assert [process.pid for process in gpu_agent.client().show(session.id).processes] == [honest.pid]
        assert killed(gpu_agent) == []
    finally:
        honest.close()


def test_a_process_without_bytes_is_no_breach(new_agent: AgentProcess, simulated: Simulated) -> None:
    empty = simulated("1xA100-40GB", context_bytes=0)
    new_agent.environment = empty.environment()
    new_agent.start()
    session = new_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    started = User(empty.start([sys.executable, PROGRAM], **python_path(), GPUSLICE_SESSION=session.id))
    try:
        looked_for_a_while(new_agent)
        assert breaches(new_agent, session) == 0
        started.do("take", MIB)
        eventually(lambda: breaches(new_agent, session) == 1)
    finally:
        started.close()


def test_memory_on_a_gpu_that_is_not_the_session_s_ends_the_process(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    honest, cheat = user(session), user(session, CUDA_VISIBLE_DEVICES="1")
    assert cheat.process.wait(PATIENCE_SECONDS) == -9
    eventually(lambda: killed(gpu_agent) == [(cheat.pid, "ok", "gpu_not_in_session")])
    assert honest.process.poll() is None


# ---- processes of other users ----


@pytest.mark.usefixtures("as_root")
def test_what_another_user_takes_in_the_same_service_is_not_the_session_s(
    gpu_agent: AgentProcess, machine: SimulatedMachine
) -> None:
    """As two users of a notebook server: one cgroup, one view of the file tree."""
    session = gpu_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    arguments = [sys.executable, PROGRAM, session.socket, session.id, session.token]
    with cgroup(f"gpuslice-test-{uuid.uuid4()}") as inside:
        own = User(machine.start([*inside, "unshare", "--mount", *arguments], **python_path()))
        try:
            enter = ("nsenter", f"--mount=/proc/{own.pid}/ns/mnt", *AS_NOBODY)
            other = User(machine.start([*inside, *enter, sys.executable, PROGRAM], **python_path()))
            try:
                other.do("take", 1000 * MIB)
                looked_for_a_while(gpu_agent)
                own.do("charge", 400 * MIB)
                own.do("take", 400 * MIB)
                looked_for_a_while(gpu_agent)
                assert (breaches(gpu_agent, session), killed(gpu_agent)) == (0, [])
                assert (own.process.poll(), other.process.poll()) == (None, None)
            finally:
                other.close()
        finally:
            own.close()


@pytest.mark.usefixtures("as_root")
def test_a_user_s_time_to_live_ends_his_processes_and_not_root_s(gpu_agent: AgentProcess, tenant: StartTenant) -> None:
    session = session_of_nobody(gpu_agent, "0", ttl_seconds=5, ttl_kill=True)
    root, own = tenant(session), tenant(session, user=int(NOBODY))
    assert own.process.wait(PATIENCE_SECONDS) == -9
    eventually(lambda: len(killed(gpu_agent)) == 2)
    assert sorted(killed(gpu_agent)) == sorted([(root.pid, "denied", "expired"), (own.pid, "ok", "expired")])
    assert root.process.poll() is None


@pytest.mark.usefixtures("as_root")
def test_a_user_s_breach_does_not_end_root_s_process(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = session_of_nobody(gpu_agent, "0", on_breach="kill")
    root = user(session)
    root.do("take", 400 * MIB)
    eventually(lambda: killed(gpu_agent) == [(root.pid, "denied", "above_limit")])
    assert root.process.poll() is None
