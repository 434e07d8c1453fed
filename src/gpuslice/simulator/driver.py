"""A simulated machine as its own NVML shows it, through NVIDIA's Python bindings.

The libraries open one machine per process and keep it (see native/simulator/machine.h), so a process that looks at
several machines does so through `in_own_process`.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

from gpuslice.simulator.machine import VARIABLE, Machine, SimulatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")


@dataclass(frozen=True)
class ProcessStatus:
    """One process with a context on a GPU."""

    pid: int
    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class MigDeviceStatus:
    """One MIG device: a compute instance in a GPU instance."""

    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int
    memory_bytes: int
    used_bytes: int


@dataclass(frozen=True)
class GpuStatus:
    """One GPU now. The numbers are None where NVML does not tell: a lost GPU, a utilization under MIG."""

    index: int
    uuid: str
    name: str
    lost: bool = False
    memory_bytes: int | None = None
    used_bytes: int | None = None
    utilization: int | None = None
    mig: bool | None = None
    mig_devices: tuple[MigDeviceStatus, ...] = ()
    processes: tuple[ProcessStatus, ...] = ()


@dataclass(frozen=True)
class MachineStatus:
    """A whole machine now."""

    name: str
    directory: str
    driver_version: str
    cuda_version: str
    gpus: tuple[GpuStatus, ...]

    @property
    def processes(self) -> tuple[ProcessStatus, ...]:
        """Every process with a context on any GPU, each once."""
        return tuple({process.pid: process for gpu in self.gpus for process in gpu.processes}.values())


def status(machine: Machine) -> MachineStatus:
    """What nvidia-smi would show."""
    with _connected(machine):
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return MachineStatus(
            name=machine.name,
            directory=str(machine.directory),
            driver_version=pynvml.nvmlSystemGetDriverVersion(),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(_gpu_status(machine, index) for index in range(pynvml.nvmlDeviceGetCount())),
        )


def inject_xid(machine: Machine, gpu: int, xid: int) -> None:
    """Makes the GPU report the error, as if its hardware had failed."""
    with _connected(machine) as library:
        code = library.gpusliceSimInjectXid(ctypes.c_uint(gpu), ctypes.c_uint(xid))
        if code != pynvml.NVML_SUCCESS:
            count = machine.description().gpu_count
            raise SimulatorError(f"GPU {gpu} takes no XID: machine {machine.name!r} has GPUs 0 to {count - 1}")


def in_own_process(function: Callable[[Machine], _T], machine: Machine) -> _T:
    """Calls the function in a process that ends with it, so that this one opens no machine."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, machine).result()


@contextmanager
def _connected(machine: Machine) -> Iterator[ctypes.CDLL]:
    os.environ[VARIABLE] = str(machine.directory)
    # pynvml opens "libnvidia-ml.so.1" by name; the loader gives it the one with that SONAME that is already here.
    library = ctypes.CDLL(str(machine.libraries / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise SimulatorError(
            f"machine {machine.name!r} cannot be read ({error}); if it is of another build of gpuslice,"
            f" {machine.removal}"
        ) from None
    try:
        yield library
    finally:
        pynvml.nvmlShutdown()


def _gpu_status(machine: Machine, index: int) -> GpuStatus:
    spec = machine.description().gpus[index]
    name, uuid = spec.name.decode(), spec.uuid.decode()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        processes = _compute_processes(handle)
    except pynvml.NVMLError_GpuIsLost:
        return GpuStatus(index, uuid, name, lost=True)
    mig = _optional(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    return GpuStatus(
        index=index,
        uuid=uuid,
        name=name,
        memory_bytes=memory.total,
        used_bytes=memory.used,
        utilization=_optional(lambda: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
        mig=mig,
        mig_devices=tuple(_mig_devices(handle)) if mig else (),
        processes=tuple(
            ProcessStatus(process.pid, _process_name(process.pid), process.usedGpuMemory) for process in processes
        ),
    )


def _compute_processes(handle: object) -> list[Any]:
    """By the newest function that the machine's driver has."""
    try:
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    except pynvml.NVMLError_FunctionNotFound:
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle))


def _mig_devices(handle: object) -> Iterator[MigDeviceStatus]:
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError_NotFound:
            continue
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
        yield MigDeviceStatus(
            uuid=pynvml.nvmlDeviceGetUUID(device),
            name=pynvml.nvmlDeviceGetName(device),
            gpu_instance=pynvml.nvmlDeviceGetGpuInstanceId(device),
            compute_instance=pynvml.nvmlDeviceGetComputeInstanceId(device),
            memory_bytes=memory.total,
            used_bytes=memory.used,
        )


def _process_name(pid: int) -> str:
    # A process may end between being listed and being asked for its name.
    return _optional(lambda: str(pynvml.nvmlSystemGetProcessName(pid))) or "?"


def _optional(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NotFound):
        return None
