"""What NVML counts against what sessions granted, on a simulated machine."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.errors import AgentError
from tests.native.inside import python_path
from tests.node.support import AgentProcess, read_line
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from gpuslice.node.admin.messages import SessionView
    from tests.node.conftest import StartTenant
    from tests.support import Simulated, SimulatedMachine

    StartUser = Callable[..., "User"]

MIB = 1 << 20
CONTEXT = 100 * MIB

MAKE_MIG = """
import pynvml
from tests.native.nvml import create_mig_device, enable_mig, gpu
pynvml.nvmlInit()
enable_mig(gpu())
print(pynvml.nvmlDeviceGetUUID(create_mig_device(gpu(), 19)))
"""


class User:
    """tests/node/gpu_user.py on the machine."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert read_line(process) == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, command: str, size: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command} {size}\n")
        self.process.stdin.flush()
        assert read_line(self.process) == "ok"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def machine(simulated: Simulated) -> SimulatedMachine:
    return simulated("2xA100-40GB", context_bytes=CONTEXT)


@pytest.fixture
def gpu_agent(new_agent: AgentProcess, machine: SimulatedMachine) -> AgentProcess:
    """An agent on the simulated machine."""
    new_agent.environment = machine.environment()
    return new_agent.start()


@pytest.fixture
def user(machine: SimulatedMachine) -> Iterator[StartUser]:
    """Starts processes that use the GPU without the interposer."""
    started: list[User] = []

    def start(session: SessionView | None = None, **extra: str) -> User:
        arguments = [session.socket, session.id, session.token] if session else []
        program = str(Path(__file__).with_name("gpu_user.py"))
        started.append(User(machine.start([sys.executable, program, *arguments], **python_path(), **extra)))
        return started[-1]

    yield start
    for each in started:
        each.close()


def breaches(agent: AgentProcess, session: SessionView) -> int:
    return agent.client().show(session.id).breaches


def test_limits_are_parts_of_the_machine_s_gpus(gpu_agent: AgentProcess) -> None:
    client = gpu_agent.client()
    status = client.status()
    assert status.nvml
    assert [gpu.model for gpu in status.gpus] == ["NVIDIA A100-SXM4-40GB"] * 2
    quarter = client.create("25%", gpus=["1"])
    assert [(gpu.uuid, gpu.limit_bytes) for gpu in quarter.gpus] == [(status.gpus[1].uuid, 10 << 30)]
    everywhere = client.create("1GiB")
    assert [gpu.uuid for gpu in everywhere.gpus] == [gpu.uuid for gpu in status.gpus]
    assert client.create("1GiB", gpus=[status.gpus[0].uuid[:12]]).gpus[0].uuid == status.gpus[0].uuid
    assert client.limit(quarter.id, "50%").gpus[0].limit_bytes == 20 << 30
    assert client.limit(everywhere.id, "2GiB", gpu="1").gpus[1].limit_bytes == 2 << 30
    with pytest.raises(AgentError, match="give at most 40 GiB"):
        client.create("41GiB")
    with pytest.raises(AgentError, match="'7' is not a GPU of this machine: it has 0"):
        client.create("1GiB", gpus=["7"])


def test_the_overhead_is_what_nvml_counts_beyond_the_charge(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"])
    honest = user(session)
    honest.do("charge", 64 * MIB)
    honest.do("take", 64 * MIB)
    eventually(lambda: gpu_agent.client().show(session.id).gpus[0].overhead_bytes == CONTEXT)
    shown = gpu_agent.client().show(session.id)
    assert shown.gpus[0].held_bytes == 64 * MIB
    assert shown.processes[0].overhead_bytes == [CONTEXT]
    # It stays what it is when the agent is started anew, and goes with the process.
    gpu_agent.kill()
    gpu_agent.start()
    assert gpu_agent.client().show(session.id).gpus[0].overhead_bytes == CONTEXT
    time.sleep(1.2)
    assert gpu_agent.client().show(session.id).gpus[0].overhead_bytes == CONTEXT
    honest.close()
    eventually(lambda: gpu_agent.client().show(session.id).gpus[0].overhead_bytes == 0)
    assert breaches(gpu_agent, session) == 0


def test_memory_that_was_not_charged_becomes_overhead(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"])
    cheat = user(session)
    cheat.do("take", 200 * MIB)
    eventually(lambda: gpu_agent.client().show(session.id).gpus[0].overhead_bytes == CONTEXT + 200 * MIB)
    cheat.do("charge", 200 * MIB)
    eventually(lambda: gpu_agent.client().show(session.id).gpus[0].overhead_bytes == CONTEXT)


def test_more_overhead_is_less_room_for_what_tenants_keep(
    gpu_agent: AgentProcess, user: StartUser, tenant: StartTenant
) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"])
    watching = tenant(session)
    before = watching.control()[4]
    loading = user(session)
    eventually(lambda: gpu_agent.client().show(session.id).gpus[0].overhead_bytes == CONTEXT)
    eventually(lambda: watching.control()[4] > before)
    loading.close()
    eventually(lambda: gpu_agent.client().show(session.id).gpus[0].overhead_bytes == 0)


def test_a_process_that_avoids_the_preload_is_found(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"])
    began = time.monotonic()
    rogue = user(GPUSLICE_SESSION=session.id)
    eventually(lambda: breaches(gpu_agent, session) == 1)
    assert time.monotonic() - began < 10  # a second, on a machine with nothing else to do
    (line,) = gpu_agent.audit("breach")
    assert (line["session_id"], line["pid"], line["error_code"]) == (session.id, rogue.pid, "no_slot")
    assert line["bytes"] == CONTEXT
    assert "gpu_user.py" in line["command"]
    time.sleep(1.2)
    assert breaches(gpu_agent, session) == 1  # once per process
    assert rogue.process.poll() is None


def test_on_breach_kill_ends_it(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    rogue = user(GPUSLICE_SESSION=session.id)
    assert rogue.process.wait(PATIENCE_SECONDS) == -9
    eventually(lambda: gpu_agent.audit("kill"))
    assert gpu_agent.audit("kill")[0]["pid"] == rogue.pid


def test_a_child_of_the_owner_belongs_to_the_session(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"], owner_pid=os.getpid())
    rogue = user()
    eventually(lambda: breaches(gpu_agent, session) == 1)
    assert gpu_agent.audit("breach")[0]["pid"] == rogue.pid


def test_a_process_of_no_session_on_the_gpu_is_no_breach(
    gpu_agent: AgentProcess, user: StartUser, tenant: StartTenant
) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    tenant(session)
    stranger = user()
    time.sleep(1.5)
    assert breaches(gpu_agent, session) == 0
    assert stranger.process.poll() is None


def test_a_session_above_its_limit_is_a_breach_once(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = gpu_agent.client().create("300MiB", gpus=["0"])
    cheat = user(session)
    time.sleep(1.2)
    assert breaches(gpu_agent, session) == 0
    cheat.do("take", 400 * MIB)
    eventually(lambda: breaches(gpu_agent, session) == 1)
    (line,) = gpu_agent.audit("breach")
    assert (line["error_code"], line["bytes"], line["pid"]) == ("above_limit", CONTEXT + 400 * MIB, cheat.pid)
    time.sleep(1.2)
    assert breaches(gpu_agent, session) == 1


def test_a_lower_limit_makes_no_breach_of_what_was_granted(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    honest = user(session)
    honest.do("charge", 500 * MIB)
    honest.do("take", 500 * MIB)
    eventually(lambda: gpu_agent.client().show(session.id).gpus[0].overhead_bytes == CONTEXT)
    gpu_agent.client().limit(session.id, "200MiB")
    time.sleep(1.2)
    gpu_agent.kill()
    gpu_agent.start()
    time.sleep(1.2)
    assert breaches(gpu_agent, session) == 0
    assert honest.process.poll() is None
    honest.do("take", 100 * MIB)
    assert honest.process.wait(30) == -9
    assert breaches(gpu_agent, session) == 1


def test_a_mig_device_is_a_gpu_of_its_own(gpu_agent: AgentProcess, machine: SimulatedMachine, user: StartUser) -> None:
    status = gpu_agent.client().status()
    uuid = machine.run([sys.executable, "-c", MAKE_MIG], extra=python_path()).stdout.strip()
    assert uuid not in [gpu.uuid for gpu in status.gpus]
    # Made after the agent last looked, and found all the same.
    session = gpu_agent.client().create("50%", gpus=[uuid])
    assert session.gpus[0].limit_bytes == 4864 * MIB // 2
    inside = user(session, CUDA_VISIBLE_DEVICES=uuid)
    inside.do("charge", 10 * MIB)
    inside.do("take", 10 * MIB)
    eventually(lambda: gpu_agent.client().show(session.id).gpus[0].overhead_bytes == CONTEXT)
    rogue = user(GPUSLICE_SESSION=session.id, CUDA_VISIBLE_DEVICES=uuid)
    eventually(lambda: breaches(gpu_agent, session) == 1)
    (line,) = gpu_agent.audit("breach")
    assert (line["pid"], line["gpu"]) == (rogue.pid, uuid)


@pytest.mark.usefixtures("as_root")
def test_a_process_of_the_same_container_belongs_to_the_session(
    gpu_agent: AgentProcess, machine: SimulatedMachine, folder: Path
) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"])
    mounted = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    cgroup = Path(next(line[1] for line in mounted if line[2] == "cgroup2")) / folder.name
    cgroup.mkdir()
    programs = [str(Path(__file__).with_name(name)) for name in ("tenant.py", "gpu_user.py")]
    # As a container: mounts and a cgroup of its own; one process is in the session, the other avoids it.
    script = (
        f"echo $$ > {cgroup}/cgroup.procs; mkfifo {folder}/wait; "
        f'"$0" {programs[0]} "$1" "$2" "$3" < {folder}/wait & "$0" {programs[1]} < {folder}/wait & '
        f"exec 3> {folder}/wait; read line"
    )
    arguments = ["unshare", "--mount", "sh", "-c", script, sys.executable, session.socket, session.id, session.token]
    container = machine.start(arguments, **python_path())
    try:
        eventually(lambda: breaches(gpu_agent, session) == 1)
        assert gpu_agent.audit("breach")[0]["error_code"] == "no_slot"
    finally:
        container.kill()
        container.communicate()
        eventually(lambda: not (cgroup / "cgroup.procs").read_text())
        cgroup.rmdir()


def test_an_agent_without_nvml_serves_and_finds_it_later(agent: AgentProcess) -> None:
    status = agent.client().status()
    assert (status.nvml, status.gpus) == (False, [])
    assert "Not Found" in status.nvml_error
    time.sleep(1.2)
    assert agent.log.read_text().count("no NVML") == 1
    assert agent.create().id
