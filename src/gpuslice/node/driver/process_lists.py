"""NVML's lists of the processes on a GPU, whatever driver wrote them.

Each driver has the newest of three functions for a list, and R535.54 wrote records of 32 bytes where its header says
24: read with a wrong stride, a list names processes that have nothing to do with the GPU. So the records are measured:
the buffer is filled with a pattern beforehand, and what is not the pattern any more was written. A list that cannot be
measured, or that says what no list can say, is not believed at all, because the agent ends processes by these numbers.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pynvml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Not in a MIG instance.
NO_INSTANCE: Final = 0xFFFFFFFF
#: What NVML says where it cannot tell how much a process holds.
UNKNOWN_BYTES: Final = 2**64 - 1

_KINDS: Final = ("Compute", "Graphics", "MPSCompute")
_INSUFFICIENT_SIZE: Final = 7
_FIRST_ROOM: Final = 64
_MOST_RECORDS: Final = 1 << 20
_PATTERN: Final = b"\xa5"
_LARGEST: Final = 32
#: By size: a process, its bytes and, but for the oldest, its GPU instance and compute instance.
_LAYOUTS: Final = {16: struct.Struct("=I4xQ"), 24: struct.Struct("=I4xQII"), 32: struct.Struct("=I4xQII8x")}
#: The functions, newest first, with the sizes that records of theirs were seen to have.
_VERSIONS: Final = (("_v3", (24, 32)), ("_v2", (24,)), ("", (16,)))
#: Without one of these nothing is known.
_NEEDED: Final = frozenset(f"nvmlDeviceGetComputeRunningProcesses{suffix}" for suffix, _ in _VERSIONS)
#: What a GPU without graphics, or a machine without MPS, may answer.
_NO_SUCH_LIST: Final = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
#: Linux gives no process a larger number.
_LARGEST_PID: Final = 1 << 22
#: No GPU has so much memory; the fields of another layout, read as bytes, give more.
_LARGEST_BYTES: Final = 1 << 50
_LARGEST_INSTANCE: Final = 256


class UnreadableListError(Exception):
    """Raised for a list of processes that cannot be what it says."""


@dataclass(frozen=True, slots=True)
class Record:
    """A process on a GPU. One that is in several lists, as a client of MPS, is one record."""

    pid: int
    size: int
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


class ProcessLists:
    """The lists of one NVML library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = [found for kind in _KINDS if (found := _newest(library, kind)) is not None]
        if not any(name in _NEEDED for name, _, _ in self._functions):
            raise UnreadableListError("this NVML has no function that lists the processes on a GPU")

    def on(self, handle: object) -> list[Record]:
        """Every process on the GPU: with compute, with graphics, and by way of MPS."""
        found: dict[tuple[int, int, int], int] = {}
        for name, function, sizes in self._functions:
            for record in _checked(name, _read(name, function, handle, sizes)):
                key = record.pid, record.gpu_instance, record.compute_instance
                found[key] = max(found.get(key, 0), record.size)
        return [Record(pid, size, *place) for (pid, *place), size in found.items()]


def record_size(buffer: bytes, count: int, sizes: Iterable[int]) -> int | None:
    """How many bytes each of the records has that were written over the pattern. None if none of the sizes fits."""
    written = len(buffer.rstrip(_PATTERN))
    for size in sizes:
        # The end of a record may happen to look like the pattern, but never as much as a whole field of it.
        if size * count - 8 < written <= size * count:
            return size
    return None


def _newest(library: ctypes.CDLL, kind: str) -> tuple[str, ctypes._NamedFuncPointer, tuple[int, ...]] | None:
    for suffix, sizes in _VERSIONS:
        name = f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
        if hasattr(library, name):
            return name, getattr(library, name), sizes
    return None


def _read(name: str, function: ctypes._NamedFuncPointer, handle: object, sizes: tuple[int, ...]) -> Iterator[Record]:
    room = _FIRST_ROOM
    while room <= _MOST_RECORDS:
        count = ctypes.c_uint(room)
        buffer = ctypes.create_string_buffer(_PATTERN * (room * _LARGEST), room * _LARGEST)
        result = function(handle, ctypes.byref(count), buffer)
        if result == 0:
            return _records(name, buffer.raw, count.value, sizes)
        if result == pynvml.NVML_ERROR_GPU_IS_LOST or (result in _NO_SUCH_LIST and name not in _NEEDED):
            return iter(())
        if result != _INSUFFICIENT_SIZE:
            raise pynvml.NVMLError(result)
        room = max(2 * room, 2 * count.value)
    raise UnreadableListError(f"{name} says that there are more than {_MOST_RECORDS} processes")


def _records(name: str, buffer: bytes, count: int, sizes: tuple[int, ...]) -> Iterator[Record]:
    if count == 0:
        return iter(())
    size = record_size(buffer, count, sizes)
    if size is None:
        raise UnreadableListError(f"{name} wrote records of a size that is not known for {count} processes")
    return (Record(*fields) for fields in _LAYOUTS[size].iter_unpack(buffer[: size * count]))


def _checked(name: str, records: Iterator[Record]) -> Iterator[Record]:
    """The records, if each of them can be: a wrong one means that none of them is understood."""
    for record in records:
        instances = (record.gpu_instance, record.compute_instance)
        if not 0 < record.pid <= _LARGEST_PID:
            raise UnreadableListError(f"{name} names a process {record.pid}")
        if record.size != UNKNOWN_BYTES and record.size > _LARGEST_BYTES:
            raise UnreadableListError(f"{name} says that process {record.pid} holds {record.size} bytes")
        if any(instance != NO_INSTANCE and instance > _LARGEST_INSTANCE for instance in instances):
            raise UnreadableListError(f"{name} says that process {record.pid} is in MIG instance {instances}")
        yield Record(record.pid, 0, *instances) if record.size == UNKNOWN_BYTES else record
