"""NVML: which GPUs the machine has, and what each process really holds on them.

These calls may take long, so the agent makes them in a thread of their own. A machine without NVML, or whose driver is
not loaded yet, is served all the same.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pynvml

from gpuslice.node.driver.process_lists import ProcessLists, UnreadableListError

if TYPE_CHECKING:
    from collections.abc import Iterator


class NvmlUnavailableError(Exception):
    """Raised when NVML cannot be used now. It may come later."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU, or a MIG device on one."""

    index: str
    uuid: str
    model: str
    memory_bytes: int
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes that a process holds on a GPU or MIG device."""

    uuid: str
    pid: int
    size: int


@contextmanager
def opened() -> Iterator[None]:
    """NVML for as long as the block runs. It counts who opened it, so this costs little when it is open already."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(str(error)) from None
    try:
        yield
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class Nvml:
    """NVML in this process. Used by one thread at a time."""

    def __init__(self) -> None:
        self._initialized = False
        self._lists: ProcessLists | None = None
        self._handles: list[tuple[str, object, dict[tuple[int, int], str]]] = []
        self._seen: dict[int, GpuInfo] = {}
        #: GPUs that fell off the bus, as far as they were known before.
        self.lost: list[GpuInfo] = []

    def inventory(self) -> list[GpuInfo]:
        """Every GPU and MIG device. Also where later calls look for processes."""
        try:
            self._initialize()
            found: list[GpuInfo] = []
            handles, lost = [], []
            for index in range(pynvml.nvmlDeviceGetCount()):
                try:
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    gpu = GpuInfo(
                        index=str(index),
                        uuid=pynvml.nvmlDeviceGetUUID(handle),
                        model=pynvml.nvmlDeviceGetName(handle),
                        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
                    )
                    partitions = _mig_devices(handle, index)
                except pynvml.NVMLError_GpuIsLost:
                    lost.append(self._seen.get(index, GpuInfo(index=str(index), uuid="", model="", memory_bytes=0)))
                    continue
                self._seen[index] = gpu
                found.append(gpu)
                found += partitions.values()
                handles.append((gpu.uuid, handle, {place: device.uuid for place, device in partitions.items()}))
        except pynvml.NVMLError as error:
            raise self._failed(error) from None
        self._handles, self.lost = handles, lost
        return found

    def usages(self) -> list[Usage]:
        """Every process with a context on any GPU."""
        if self._lists is None:
            return []
        try:
            return [
                Usage(partitions.get((record.gpu_instance, record.compute_instance), uuid), record.pid, record.size)
                for uuid, handle, partitions in self._handles
                for record in self._lists.on(handle)
            ]
        except pynvml.NVMLError as error:
            raise self._failed(error) from None
        except UnreadableListError as error:
            raise NvmlUnavailableError(f"{error}: no process is compared with its session, or ended") from None

    def _initialize(self) -> None:
        if not self._initialized:
            pynvml.nvmlInit()
            self._initialized = True
            # The bindings make a Python object of every process; thousands of them cost more than all else here.
            try:
                self._lists = ProcessLists(ctypes.CDLL("libnvidia-ml.so.1"))
            except UnreadableListError as error:
                raise NvmlUnavailableError(str(error)) from None

    def _failed(self, error: pynvml.NVMLError) -> NvmlUnavailableError:
        """Starts over with the next call: the driver may have been loaded anew."""
        if self._initialized:
            self._initialized = False
            self._handles = []
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        return NvmlUnavailableError(str(error))


def _mig_devices(handle: object, index: int) -> dict[tuple[int, int], GpuInfo]:
    """The MIG devices on a GPU, by GPU instance and compute instance."""
    found: dict[tuple[int, int], GpuInfo] = {}
    try:
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError_NotSupported:
        return found
    for number in range(count):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            continue
        place = pynvml.nvmlDeviceGetGpuInstanceId(device), pynvml.nvmlDeviceGetComputeInstanceId(device)
        found[place] = GpuInfo(
            index=f"{index}:{number}",
            uuid=pynvml.nvmlDeviceGetUUID(device),
            model=pynvml.nvmlDeviceGetName(device),
            memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(device).total,
            mig=True,
        )
    return found
