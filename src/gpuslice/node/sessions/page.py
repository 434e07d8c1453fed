"""A session's shared memory and the attach message, as native/include/page.h declares them.

tests/native/test_page_layout.py compares every field with the C compiler's word.
"""

from __future__ import annotations

import ctypes
import struct
import uuid
from typing import Final

MAGIC: Final = 0x31454741504C5347
VERSION: Final = 4
MAX_GPUS: Final = 16
SLOTS: Final = 512
LANES: Final = 4
SESSION_BYTES: Final = 64
TOKEN_BYTES: Final = 128
CONTROL_BYTES: Final = 4096

ACTIVE: Final = 0
EXPIRED: Final = 1
RELEASED: Final = 2

#: A cell's `charged`: units, how many of them are spare, and an epoch's low bits.
UNIT: Final = 512
UNITS_MASK: Final = 2**36 - 1
SPARE_SHIFT: Final = 36
SPARE_MASK: Final = 2**16 - 1
EPOCH_SHIFT: Final = 52
EPOCH_MASK: Final = 2**12 - 1
BYTES_MASK: Final = 2**45 - 1

ATTACH_MAGIC: Final = 0x4843415454414C53
ATTACH_OBSERVER: Final = 1
ATTACH_PROCESSES: Final = 2
NO_SLOT: Final = 2**32 - 1
ATTACH_OK: Final = 0
ATTACH_DENIED: Final = 1
ATTACH_UNKNOWN: Final = 2
ATTACH_FULL: Final = 3
ATTACH_BROKEN: Final = 4
ATTACH_BUSY: Final = 5


class Gpu(ctypes.Structure):
    """struct gpuslice_gpu."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("limit_bytes", ctypes.c_uint64),
        ("core_percent", ctypes.c_uint32),
        ("epoch", ctypes.c_uint32),
    )


class Control(ctypes.Structure):
    """struct gpuslice_control.

    ctypes stores an aligned field of 4 or 8 bytes with one machine instruction, and the agent is the only writer: a
    tenant sees the old value or the new one, which is all that the relaxed atomics of page.h ask of the other side.
    """

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("gpu_count", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("slots_high", ctypes.c_uint32),
        ("heartbeat_ns", ctypes.c_uint64),
        ("grace_ns", ctypes.c_uint64),
        ("cells_inode", ctypes.c_uint64),
        ("session", ctypes.c_char * SESSION_BYTES),
        ("gpus", Gpu * MAX_GPUS),
    )


class Cell(ctypes.Structure):
    """struct gpuslice_cell."""

    _fields_ = (
        ("charged", ctypes.c_uint64),
        ("granted", ctypes.c_uint64),
        ("denied", ctypes.c_uint64),
        ("overhead", ctypes.c_uint64),
        ("peak", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 3),
    )


class Clock(ctypes.Structure):
    """struct gpuslice_clock."""

    _fields_ = (
        ("paid_until", ctypes.c_uint64),
        ("device_ns", ctypes.c_uint64),
        ("throttled_ns", ctypes.c_uint64),
        ("launches", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64 * 4),
    )


class Attach(ctypes.Structure):
    """struct gpuslice_attach: what a process asks."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("session", ctypes.c_char * SESSION_BYTES),
        ("token", ctypes.c_char * TOKEN_BYTES),
    )


class Attached(ctypes.Structure):
    """struct gpuslice_attached: what it is answered."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("status", ctypes.c_uint32),
        ("slot", ctypes.c_uint32),
        ("gpu_count", ctypes.c_uint32),
        ("message", ctypes.c_char * 104),
    )


CELL_BYTES: Final = ctypes.sizeof(Cell)
CLOCK_BYTES: Final = ctypes.sizeof(Clock)


class ProcessNumbers(ctypes.Structure):
    """struct gpuslice_process."""

    _fields_ = (("pid", ctypes.c_uint32), ("own_pid", ctypes.c_uint32))


ATTACH_BYTES: Final = ctypes.sizeof(Attach)
ATTACHED_BYTES: Final = ctypes.sizeof(Attached)
SLOT_BYTES: Final = LANES * CELL_BYTES
CELL_WORDS: Final = 5
#: The words of a slot's cells on one GPU, for many slots at once.
SLOT_WORDS: Final = struct.Struct("=" + f"{CELL_WORDS}Q24x" * LANES)


def clocks_offset(gpu_count: int) -> int:
    """gpuslice_clocks_offset."""
    return gpu_count * SLOTS * SLOT_BYTES


def cells_bytes(gpu_count: int) -> int:
    """gpuslice_cells_bytes."""
    return clocks_offset(gpu_count) + gpu_count * CLOCK_BYTES


def cell_offset(gpu: int, slot: int) -> int:
    """Where the cells of that slot on that GPU begin in `cells`: the first lane's."""
    return (gpu * SLOTS + slot) * SLOT_BYTES


def held_bytes(charged: int) -> int:
    """gpuslice_held_units, in bytes: what is charged and not spare."""
    return max(0, (charged & UNITS_MASK) - (charged >> SPARE_SHIFT & SPARE_MASK)) * UNIT


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes in `GPU-…` or `MIG-…`, as cuDeviceGetUuid gives them."""
    return uuid.UUID(text.split("-", 1)[1] if text[:4] in ("GPU-", "MIG-") else text).bytes
