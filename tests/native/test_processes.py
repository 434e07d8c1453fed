"""Processes that share a simulated GPU: its memory, its time, and what a process leaves when it ends."""

from __future__ import annotations

import ctypes
import itertools
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.simulator import layout
from gpuslice.simulator.machine import ROOT as SHARED_MEMORY
from tests.native.building import cuda_headers
from tests.native.worker import worker

if TYPE_CHECKING:
    from tests.native.conftest import Compile
    from tests.support import Simulated, SimulatedMachine

GIB = 1024**3
MIB = 1024**2
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
LAUNCH_FAILED = 719


# ---- memory ----


def test_memory_runs_out_across_processes_and_what_one_frees_the_other_gets(simulated: Simulated) -> None:
    machine = simulated()
    with worker(machine) as first, worker(machine) as second:
        assert first.do("allocate", 30 * GIB) == 0
        assert second.do("allocate", 11 * GIB) == OUT_OF_MEMORY
        assert second.do("allocate", 10 * GIB) == 0
        assert first.do("available") == second.do("available") == 0
        assert first.do("allocate", 512) == OUT_OF_MEMORY
        assert second.do("free") == 0
        assert first.do("available") == 10 * GIB
        assert first.do("allocate", 10 * GIB) == 0


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM], ids=lambda number: number.name)
def test_what_a_process_held_is_free_when_it_is_gone_however_it_died(simulated: Simulated, death: int) -> None:
    machine = simulated()
    with worker(machine) as survivor, worker(machine) as victim:
        assert survivor.do("allocate", 1 * GIB) == victim.do("allocate", 30 * GIB) == 0
        assert survivor.do("used") == {
            "all": 31 * GIB,
            str(survivor.pid): 1 * GIB,
            str(victim.pid): 30 * GIB,
        }
        victim.end(death)
        assert survivor.do("available") == 39 * GIB
        assert survivor.do("used") == {"all": 1 * GIB, str(survivor.pid): 1 * GIB}
        assert survivor.do("allocate", 39 * GIB) == 0


def test_a_kill_in_the_middle_of_an_allocation_leaves_nothing(simulated: Simulated) -> None:
    machine = simulated()
    with worker(machine) as survivor:
        for delay in (0.001, 0.003, 0.01, 0.02):
            with worker(machine) as victim:
                assert victim.do("churn", 1 * GIB) == 0
                time.sleep(delay)
                victim.end(signal.SIGKILL)
            assert survivor.do("available") == 40 * GIB
        assert survivor.do("used") == {"all": 0, str(survivor.pid): 0}


def test_a_process_that_becomes_another_program_holds_nothing(simulated: Simulated) -> None:
    machine = simulated()
    with worker(machine) as survivor, worker(machine) as replaced:
        assert replaced.do("allocate", 1 * GIB) == 0
        assert replaced.do("replace") == 0
        assert survivor.do("available") == 40 * GIB
        assert survivor.do("used") == {"all": 0, str(survivor.pid): 0}


def test_a_forked_child_has_no_driver_and_its_parent_is_unharmed(simulated: Simulated) -> None:
    machine = simulated()
    with worker(machine) as parent, worker(machine) as other:
        assert parent.do("allocate", 1 * GIB) == 0
        assert parent.do("fork") == [NOT_INITIALIZED, NOT_INITIALIZED, NOT_INITIALIZED, 0]
        assert other.do("available") == 39 * GIB
        assert parent.do("allocate", 1 * GIB) == 0
        assert other.do("used")[str(parent.pid)] == 2 * GIB
        assert parent.do("free") == parent.do("free") == 0
        assert other.do("available") == 40 * GIB


def test_machines_side_by_side_do_not_see_each_other(simulated: Simulated) -> None:
    with worker(simulated()) as here, worker(simulated("1xT4")) as there:
        assert here.do("allocate", 20 * GIB) == 0
        assert there.do("available") == 15360 * MIB
        assert there.do("allocate", 1 * GIB) == 0
        assert here.do("used") == {"all": 20 * GIB, str(here.pid): 20 * GIB}
        assert there.do("used") == {"all": 1 * GIB, str(there.pid): 1 * GIB}


def test_a_machine_leaves_nothing_in_shared_memory(simulated: Simulated) -> None:
    machine = simulated()
    with worker(machine) as process:
        assert process.do("allocate", 1 * GIB) == 0
        assert process.do("spin", 10) > 0
    files = sorted(path.name for path in machine.directory.iterdir())
    assert files == ["lib", "machine", "slots"]
    machine.machine.destroy()
    assert not [path for path in SHARED_MEMORY.iterdir() if machine.name in path.name]


#: Cuts the first GPU into parts, and prints the UUIDs of the first two.
PARTITION = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlDeviceSetMigMode(gpu, 1)
for profile, compute in ((14, 1), (19, 0)):
    pynvml.nvmlGpuInstanceCreateComputeInstance(pynvml.nvmlDeviceCreateGpuInstance(gpu, profile), compute)
for index in range(2):
    print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)))
"""


def test_a_process_on_a_part_of_a_gpu_has_that_part_s_memory_and_no_more(simulated: Simulated) -> None:
    machine = simulated()
    larger, smaller = machine.run([sys.executable, "-c", PARTITION]).stdout.split()
    with worker(machine, CUDA_VISIBLE_DEVICES=larger) as first, worker(machine, CUDA_VISIBLE_DEVICES=smaller) as second:
        assert (first.do("available"), second.do("available")) == (9856 * MIB, 4864 * MIB)
        assert second.do("allocate", 4864 * MIB) == 0
        assert second.do("allocate", 512) == OUT_OF_MEMORY
        assert first.do("available") == 9856 * MIB


def test_a_gpu_that_fell_off_the_bus_takes_no_more_work(simulated: Simulated, gpuslice_command: Path) -> None:
    machine = simulated("2xA100-40GB")
    with worker(machine) as lost, worker(machine, CUDA_VISIBLE_DEVICES="1") as other:
        assert lost.do("launch", 10) == other.do("launch", 10) == 0
        machine.run([gpuslice_command, "sim", "inject", "--name", machine.name, "--gpu", "0", "--xid", "79"])
        assert lost.do("launch", 10) == LAUNCH_FAILED
        assert other.do("launch", 10) == 0


# ---- many ----


def slots_ever_used(machine: SimulatedMachine) -> int:
    """sim_machine.slots_high, the first word behind the description."""
    with (machine.directory / "machine").open("rb") as file:
        file.seek(ctypes.sizeof(layout.Description))
        return int.from_bytes(file.read(4), "little")


def test_64_processes_at_once_get_what_they_wrote_and_leave_nothing(
    simulated: Simulated, compile_program: Compile
) -> None:
    machine = simulated()
    program = compile_program(
        [Path(__file__).with_name("crowd.c")], f"-I{cuda_headers()}", machine.machine.libraries / "libcuda.so.1"
    )
    with worker(machine) as observer:
        seen = []
        for _ in range(2):
            with ExitStack() as stack:
                crowd = [stack.enter_context(machine.start([program, "100"])) for _ in range(64)]
                for process in crowd:
                    stack.callback(process.kill)
                for process in crowd:
                    assert process.stdout is not None
                    assert process.stdout.readline() == "ready\n"
                used = observer.do("used")
                assert used == {"all": 64 * MIB, str(observer.pid): 0} | {str(one.pid): MIB for one in crowd}
                for process in crowd:
                    assert process.stdin is not None
                    process.stdin.close()
                assert [process.wait(timeout=120) for process in crowd] == [0] * 64
            assert observer.do("used") == {"all": 0, str(observer.pid): 0}
            seen.append(slots_ever_used(machine))
        assert seen[0] == seen[1], "the slots of the dead were not used again"


# ---- time ----


def test_two_processes_share_the_time_of_a_gpu(simulated: Simulated) -> None:
    machine = simulated()
    with worker(machine) as first, worker(machine) as second:
        alone = first.do("spin", 400_000)
        assert alone >= 399
        for process in (first, second):
            process.begin("spin", 1_000_000)
        together = [process.result() for process in (first, second)]
    # Twice a second, less by how much later the second one began.
    assert all(milliseconds > 1_300 for milliseconds in together), together


def test_nvml_shows_that_they_share_it_evenly(simulated: Simulated) -> None:
    machine = simulated()
    with worker(machine) as observer, worker(machine) as first, worker(machine) as second:
        for process in (first, second):
            process.begin("spin", 60_000_000)
        busy = {str(first.pid), str(second.pid)}
        for _ in itertools.repeat(None, 200):
            shares = observer.do("shares")
            if shares.keys() == busy and all(35 <= share <= 65 for share in shares.values()):
                return
            time.sleep(0.05)
    raise AssertionError(f"their shares of the time: {shares}")
