"""The agent with drivers of other versions: older lists of processes, longer records, graphics and MPS."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from gpuslice.simulator.configuration import Driver
from tests.native.inside import python_path
from tests.node.support import AgentProcess, read_line
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.support import Simulated, SimulatedMachine

MIB = 1 << 20
CONTEXT = 100 * MIB
_V3 = tuple(f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute"))
_V2 = tuple(name.replace("_v3", "_v2") for name in _V3)

DRIVERS = {
    "R610": Driver(),
    "R535.54": Driver(version="535.54.03", process_record=32),
    "R470": Driver(
        version="470.57.02", missing=(*_V3, "nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetNumaNodeId")
    ),
    "R450": Driver(version="450.80.02", missing=(*_V3, *_V2)),
}

USAGES = """
from gpuslice.node.gpus.nvml import Nvml
nvml = Nvml()
nvml.inventory()
for usage in nvml.usages():
    print(usage.pid, usage.size)
"""
PROFILES = """
from gpuslice.node.gpus import inventory
for gpu in inventory.read():
    print(gpu.driver_version, *(profile.name for profile in gpu.mig_profiles))
"""


@pytest.fixture(params=DRIVERS)
def machine(request: pytest.FixtureRequest, simulated: Simulated) -> SimulatedMachine:
    return simulated("1xA100-40GB", context_bytes=CONTEXT, driver=DRIVERS[request.param])


def start(machine: SimulatedMachine, **extra: str) -> subprocess.Popen[str]:
    process = machine.start([sys.executable, "-m", "tests.node.gpu_user"], **python_path(), **extra)
    assert read_line(process) == "ready"
    return process


@pytest.fixture
def users(machine: SimulatedMachine) -> Iterator[list[subprocess.Popen[str]]]:
    """Three processes on the GPU: one that computes, one that draws, a client of MPS."""
    started = [start(machine), start(machine, GPUSLICE_SIM_KIND="graphics"), start(machine, GPUSLICE_SIM_KIND="mps")]
    yield started
    for each in started:
        each.kill()
        each.communicate()


def test_every_process_is_found_once_with_what_it_holds(
    machine: SimulatedMachine, users: list[subprocess.Popen[str]]
) -> None:
    done = machine.run([sys.executable, "-c", USAGES])
    assert sorted(tuple(map(int, line.split())) for line in done.stdout.splitlines()) == sorted(
        (user.pid, CONTEXT) for user in users
    )


def test_profiles_have_the_names_that_newer_drivers_give_them(machine: SimulatedMachine) -> None:
    version, *names = machine.run([sys.executable, "-c", PROFILES]).stdout.split()
    assert names == ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1g.5gb+me", "1g.10gb"]
    assert version.split(".")[0] == machine.machine.description().driver_version.decode().split(".")[0]


def test_the_right_process_is_ended(machine: SimulatedMachine, new_agent: AgentProcess) -> None:
    new_agent.environment = machine.environment()
    agent = new_agent.start()
    session = agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    bystanders = [start(machine) for _ in range(3)]
    rogue = start(machine, GPUSLICE_SESSION=session.id)
    try:
        assert rogue.wait(PATIENCE_SECONDS) == -9
        eventually(lambda: agent.audit("kill"))
        assert [line["pid"] for line in agent.audit("kill")] == [rogue.pid]
        assert [each.poll() for each in bystanders] == [None] * 3
    finally:
        for each in (*bystanders, rogue):
            each.kill()
            each.communicate()
