"""The `attached` file: which process has which slot, and what the processes that are gone have left in the books.

It is the agent's own; tenants never see it. Every write is one pwrite inside one page of memory, which a SIGKILL cannot
tear, so the next agent goes on from it with nothing lost and nothing counted twice:

    1. the totals with the dead process in them, and who it was, are written in one piece;
    2. its cells are cleared;
    3. its entry is cleared.

An agent that finds the process named in 1 still in its entry was stopped in between: it does 2 and 3 and adds nothing.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from gpuslice.node.errors import BrokenSessionError
from gpuslice.node.sessions import page
from gpuslice.system.processes import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAGIC: Final = 0x3143415454415347
_VERSION: Final = 2
#: Magic, version, GPUs; the folded process: slot, pid, start time; the cells' inode.
_HEADER: Final = struct.Struct("=QIIIIQQ")
_GPU: Final = struct.Struct("=5Q")
_ENTRY: Final = struct.Struct("=QII")  # start time, pid, flags
_OTHER_CELLS: Final = 1  # a flag: the process has other cells than those that the header names
_ENTRIES: Final = 1024  # where they begin; with it, up to 192 processes need one page of memory
_BYTES: Final = _ENTRIES + page.SLOTS * _ENTRY.size
_MOST: Final = 2**63 - 1


EMPTY_SLOT: Final = page.NO_SLOT, ProcessIdentity(0, 0)


@dataclass(slots=True)
class Totals:
    """What processes that are gone did on one GPU, and breaches."""

    allocations: int = 0
    denials: int = 0
    recovered_bytes: int = 0
    peak_bytes: int = 0
    breaches: int = 0

    def words(self) -> tuple[int, ...]:
        return tuple(min(getattr(self, item.name), _MOST) for item in fields(self))


@dataclass
class AttachedFile:
    """A session's `attached` file, and its totals in memory."""

    path: Path
    gpu_count: int
    totals: list[Totals] = field(init=False)
    folded: tuple[int, ProcessIdentity] = field(init=False)
    #: Which memory the cells are (gpuslice.node.sessions.cells); 0 if there was none yet.
    cells_inode: int = field(init=False)

    def __post_init__(self) -> None:
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        content = os.pread(self._descriptor, _ENTRIES, 0)
        if len(content) != _ENTRIES or os.fstat(self._descriptor).st_size != _BYTES:
            raise BrokenSessionError("attached has the wrong length")
        magic, version, gpu_count, slot, pid, start_time, self.cells_inode = _HEADER.unpack_from(content)
        if (magic, version, gpu_count) != (_MAGIC, _VERSION, self.gpu_count):
            raise BrokenSessionError("attached is not of this version")
        self.folded = slot, ProcessIdentity(pid, start_time)
        self.totals = [
            Totals(*_GPU.unpack_from(content, _HEADER.size + index * _GPU.size)) for index in range(gpu_count)
        ]

    def entries(self) -> dict[int, ProcessIdentity]:
        """The slots that are taken."""
        return {
            slot: ProcessIdentity(pid, start_time)
            for slot, (start_time, pid, _) in enumerate(self._read_entries())
            if pid
        }

    def with_other_cells(self) -> set[int]:
        """The slots of processes whose cells were lost in a restart: no later agent finds them in these."""
        return {slot for slot, (_, pid, flags) in enumerate(self._read_entries()) if pid and flags & _OTHER_CELLS}

    def _read_entries(self) -> Iterator[tuple[int, int, int]]:
        return _ENTRY.iter_unpack(os.pread(self._descriptor, _BYTES - _ENTRIES, _ENTRIES))

    def write_entry(self, slot: int, process: ProcessIdentity | None, *, other_cells: bool = False) -> None:
        flags = _OTHER_CELLS if other_cells else 0
        entry = _ENTRY.pack(process.start_time, process.pid, flags) if process else bytes(_ENTRY.size)
        os.pwrite(self._descriptor, entry, _ENTRIES + slot * _ENTRY.size)

    def write_totals(self, folded: tuple[int, ProcessIdentity] | None = None) -> None:
        """The totals in memory, and whose cells they contain from now on."""
        self.folded = folded or self.folded
        slot, process = self.folded
        content = _HEADER.pack(
            _MAGIC, _VERSION, self.gpu_count, slot, process.pid, process.start_time, self.cells_inode
        )
        content += b"".join(_GPU.pack(*totals.words()) for totals in self.totals)
        os.pwrite(self._descriptor, content, 0)

    def write_cells_inode(self, inode: int) -> None:
        """Which cells the entries speak of from now on."""
        self.cells_inode = inode
        self.write_totals()

    def close(self) -> None:
        os.close(self._descriptor)


def write_attached(path: Path, gpu_count: int) -> None:
    """Makes an `attached` file without a process in it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _ENTRIES)
        os.ftruncate(descriptor, _BYTES)
        header = _HEADER.pack(_MAGIC, _VERSION, gpu_count, page.NO_SLOT, 0, 0, 0)
        os.pwrite(descriptor, header, 0)
    finally:
        os.close(descriptor)
