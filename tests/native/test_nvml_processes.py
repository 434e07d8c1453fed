"""Processes as the simulated NVML shows them: which are on a GPU, with how much of it, and how busy.

The processes are tests/native/tenant.c: they use the machine without CUDA, so that only NVML is tested here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from tests.native.building import ROOT
from tests.native.inside import on_machine
from tests.native.nvml import MIB, Handle, call, create_mig_device, enable_mig, gpu, mig_devices, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.native.conftest import Compile

SIMULATOR = ROOT / "native" / "simulator"
NO_INSTANCE = 0xFFFFFFFF
WHOLE_GPU, FIRST_INSTANCE = 0, 1  # the memory domains of GPU 0


@pytest.fixture
def program(compile_program: Compile) -> str:
    sources = [Path(__file__).with_name("tenant.c"), SIMULATOR / "machine.c", SIMULATOR / "engine.c"]
    return str(compile_program(sources, f"-I{SIMULATOR}", "-pthread"))


@contextmanager
def tenant(program: str, size: int, *, domain: int = WHOLE_GPU, busy: bool = False) -> Iterator[subprocess.Popen[str]]:
    """In the block there is a process that holds that much of the domain."""
    command = [program, str(domain), str(size), str(int(busy))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def listed(device: Handle) -> list[tuple[int, int, int, int]]:
    return [
        (process.pid, process.usedGpuMemory, process.gpuInstanceId, process.computeInstanceId)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    ]


def used(device: Handle) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(device).used)


# ---- lists of processes ----


@on_machine("2xA100-40GB")
def test_a_process_is_listed_with_what_it_holds(program: str) -> None:
    with tenant(program, 3 * MIB) as first, tenant(program, 5 * MIB) as second:
        assert sorted(listed(gpu(0))) == sorted(
            [(first.pid, 3 * MIB, NO_INSTANCE, NO_INSTANCE), (second.pid, 5 * MIB, NO_INSTANCE, NO_INSTANCE)]
        )
        assert used(gpu(0)) == 8 * MIB
        assert (listed(gpu(1)), used(gpu(1))) == ([], 0)
        assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu(0)) == []
        assert pynvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu(0)) == []
        assert pynvml.nvmlSystemGetProcessName(first.pid) == program


@on_machine()
@pytest.mark.parametrize("death", [signal.SIGTERM, signal.SIGKILL])
def test_a_dead_process_holds_nothing(program: str, death: int) -> None:
    with tenant(program, 3 * MIB) as process:
        process.send_signal(death)
        process.wait()
        assert (listed(gpu()), used(gpu())) == ([], 0)


@on_machine()
def test_a_process_that_only_looks_is_not_listed() -> None:
    child = os.fork()
    if child == 0:
        pynvml.nvmlInit()
        os._exit(len(listed(gpu())))
    assert os.waitpid(child, 0)[1] == 0
    assert listed(gpu()) == []


@on_machine()
@pytest.mark.parametrize(("version", "size"), [("", 16), ("_v2", 24), ("_v3", 24)])
def test_each_version_of_the_list_says_how_much_room_it_needs(program: str, version: str, size: int) -> None:
    name = f"nvmlDeviceGetComputeRunningProcesses{version}"
    count, room = ctypes.c_uint(0), (ctypes.c_ubyte * 64)(*[0xAA] * 64)
    assert call(name, gpu(), ctypes.byref(count), None) == pynvml.NVML_SUCCESS  # no process, so no room is enough
    with tenant(program, 4096) as process:
        assert call(name, gpu(), ctypes.byref(count), None) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        assert count.value == 1
        assert call(name, gpu(), ctypes.byref(count), None) == pynvml.NVML_ERROR_INVALID_ARGUMENT
        assert call(name, gpu(), ctypes.byref(count), room) == pynvml.NVML_SUCCESS
        assert ctypes.c_uint.from_buffer(room, 0).value == process.pid
        assert ctypes.c_ulonglong.from_buffer(room, 8).value == 4096
        assert bytes(room[size:]) == b"\xaa" * (64 - size)


class Detail(ctypes.Structure):
    """nvmlProcessDetail_v1_t."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("rest", ctypes.c_ulonglong * 2))


class DetailList(ctypes.Structure):
    """nvmlProcessDetailList_v1_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("mode", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("details", ctypes.POINTER(Detail)),
    )


@on_machine("1xH100-80GB")
def test_the_list_with_details_tells_kinds_of_process_apart(program: str) -> None:
    room = (Detail * 4)()

    def ask(mode: int, count: int) -> tuple[int, int]:
        details = DetailList(1 << 24 | ctypes.sizeof(DetailList), mode, count, room)
        code = call("nvmlDeviceGetRunningProcessDetailList", gpu(), ctypes.byref(details))
        return code, details.count

    with tenant(program, 4096) as process:
        assert ask(0, 0) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 1)
        assert ask(0, 4) == (pynvml.NVML_SUCCESS, 1)
        assert (room[0].pid, room[0].used) == (process.pid, 4096)
        assert ask(1, 4) == ask(2, 4) == (pynvml.NVML_SUCCESS, 0)
        assert ask(4, 4)[0] == pynvml.NVML_ERROR_INVALID_ARGUMENT


# ---- how busy they are ----


@on_machine()
def test_a_busy_process_makes_its_gpu_busy_hot_and_fast(program: str) -> None:
    device = gpu()
    cool = pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU)
    idle = pynvml.nvmlDeviceGetPowerUsage(device)
    assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == 0
    with tenant(program, 4096, busy=True) as first, tenant(program, 4096, busy=True) as second:
        rates = pynvml.nvmlDeviceGetUtilizationRates(device)
        assert 0 < rates.memory <= rates.gpu <= 100
        samples = pynvml.nvmlDeviceGetProcessUtilization(device, 0)
        assert {sample.pid for sample in samples} == {first.pid, second.pid}
        assert all(0 < sample.smUtil < 100 for sample in samples)
        infos = pynvml.nvmlDeviceGetProcessesUtilizationInfo(device, 0)
        assert {info.pid for info in infos} == {first.pid, second.pid}
        assert pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU) > cool
        assert pynvml.nvmlDeviceGetPowerUsage(device) > idle
        assert pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM) == 1410


@on_machine()
def test_a_sample_of_utilization_is_seen_once(program: str) -> None:
    device = gpu()
    with tenant(program, 4096, busy=True):
        newest = pynvml.nvmlDeviceGetProcessUtilization(device, 0)[0].timeStamp
        with refused(pynvml.NVML_ERROR_NOT_FOUND):
            pynvml.nvmlDeviceGetProcessUtilization(device, newest + 10**6)
        assert pynvml.nvmlDeviceGetProcessUtilization(device, newest - 1)[0].timeStamp >= newest


@on_machine()
def test_an_idle_process_has_no_sample(program: str) -> None:
    with tenant(program, 4096), refused(pynvml.NVML_ERROR_NOT_FOUND):
        pynvml.nvmlDeviceGetProcessUtilization(gpu(), 0)


@on_machine()
def test_energy_only_grows_and_grows_faster_with_work(program: str) -> None:
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu())
    with tenant(program, 4096, busy=True):
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu()) - before > 100_000  # 0.6 s at more than 300 W


# ---- processes and MIG ----


@on_machine()
def test_a_gpu_in_use_keeps_its_mode_until_it_is_idle(program: str) -> None:
    with tenant(program, 4096):
        assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_IN_USE
        assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]


@on_machine()
def test_a_process_on_a_part_of_a_gpu_belongs_to_that_part(program: str) -> None:
    parent = gpu()
    enable_mig(parent)
    mine, other = create_mig_device(parent, 9), create_mig_device(parent, 9)
    number = pynvml.nvmlDeviceGetGpuInstanceId(mine)
    with tenant(program, 7 * MIB, domain=FIRST_INSTANCE) as process:
        entry = (process.pid, 7 * MIB, number, 0)
        assert [listed(device) for device in (parent, mine, other)] == [[entry], [entry], []]
        assert [used(device) for device in (parent, mine, other)] == [7 * MIB, 7 * MIB, 0]


@on_machine()
def test_what_a_process_runs_on_cannot_be_destroyed(program: str) -> None:
    parent = gpu()
    enable_mig(parent)
    create_mig_device(parent, 9)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(parent, 2)
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    with tenant(program, 4096, domain=FIRST_INSTANCE) as process:
        with refused(pynvml.NVML_ERROR_IN_USE):
            pynvml.nvmlComputeInstanceDestroy(compute)
        process.kill()
        process.wait()
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
        assert mig_devices(parent) == []
