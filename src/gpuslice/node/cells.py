"""The `cells` file: what each process on each GPU says it holds.

Tenants hold this file open for writing. They may put anything into it, and may cut it off: a mapping of a file that was
cut off kills its reader with SIGBUS. So the agent never maps it. It reads and writes with pread and pwrite, where the
worst is a short read, and believes no number beyond what a cell can honestly hold.

A live cell is one aligned word per number, copied whole by the kernel; each number is right for itself, and nothing
here needs two of them at the same instant. A dead process's cell does not change any more: what is folded is exact.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuslice.node import page

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: More than any process can honestly count to.
MAX_COUNT: Final = 2**48
Mark = tuple[int, ...]
_EMPTY: Final = bytes(page.SLOT_BYTES)
_WORD: Final = struct.Struct("=Q")
_CHUNK: Final = 16  # slots whose cells share a page of memory


class Cell(NamedTuple):
    """One process on one GPU, as far as it can be believed."""

    held: int
    allocations: int
    denials: int
    overhead: int
    peak: int
    #: Two looks at a cell with equal marks: nothing was allocated or freed between them.
    mark: Mark


class CellsFile:
    """A session's cells, by descriptor."""

    def __init__(self, path: Path, gpu_count: int) -> None:
        self._path = str(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._gpu_count = gpu_count
        self._allocated = 0  # slots whose cells have memory behind them
        status = os.fstat(self._descriptor)
        self.inode = status.st_ino
        self.damaged = status.st_size != page.cells_bytes(gpu_count)

    def open_for_tenant(self) -> int:
        """A descriptor to pass on. Never the agent's own: what a tenant sets on it (O_APPEND) would hold for both."""
        return os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def ensure(self, slot: int) -> None:
        """Gives the slot's cells memory: a tenant that writes to a full disk would be killed by SIGBUS."""
        if slot < self._allocated:
            return
        first = slot - slot % _CHUNK
        for gpu in range(self._gpu_count):
            os.posix_fallocate(self._descriptor, page.cell_offset(gpu, first), _CHUNK * page.SLOT_BYTES)
        self._allocated = first + _CHUNK

    def repair(self) -> bool:
        """Puts the file's length right. True if a tenant had changed it."""
        expected = page.cells_bytes(self._gpu_count)
        found = os.fstat(self._descriptor).st_size
        if found == expected:
            return False
        os.ftruncate(self._descriptor, expected)
        self._allocated = 0
        return True

    def read(self, gpu: int, slots: int) -> list[Cell]:
        """The first `slots` cells of a GPU."""
        wanted = slots * page.SLOT_BYTES
        content = os.pread(self._descriptor, wanted, page.cell_offset(gpu, 0)).ljust(wanted, b"\0")
        return [_believed(words) for words in page.SLOT_WORDS.iter_unpack(content)]

    def read_slot(self, slot: int) -> list[Cell]:
        """One slot's cells, one per GPU."""
        return [self.read_one(gpu, slot) for gpu in range(self._gpu_count)]

    def read_one(self, gpu: int, slot: int) -> Cell:
        content = os.pread(self._descriptor, page.SLOT_BYTES, page.cell_offset(gpu, slot)).ljust(page.SLOT_BYTES, b"\0")
        return _believed(page.SLOT_WORDS.unpack(content))

    def write_overhead(self, gpu: int, slot: int, overhead: int) -> None:
        offset = page.cell_offset(gpu, slot) + page.Cell.overhead.offset
        os.pwrite(self._descriptor, _WORD.pack(min(overhead, page.BYTES_MASK)), offset)

    def clear(self, slot: int) -> None:
        for gpu in range(self._gpu_count):
            os.pwrite(self._descriptor, _EMPTY, page.cell_offset(gpu, slot))

    def close(self) -> None:
        os.close(self._descriptor)


def write_cells(path: Path, gpu_count: int) -> None:
    """Makes a cells file, all zero."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, page.cells_bytes(gpu_count))
    finally:
        os.close(descriptor)


def held(cells: Iterable[Cell]) -> int:
    return sum(cell.held for cell in cells)


def _believed(words: tuple[int, ...]) -> Cell:
    """What the lanes of a slot say together. Only the first has an overhead."""
    charged, granted, denied, overhead, peak = (words[field :: page.CELL_WORDS] for field in range(page.CELL_WORDS))
    return Cell(
        held=min(sum(map(page.held_bytes, charged)), page.BYTES_MASK),
        allocations=min(sum(granted), MAX_COUNT),
        denials=min(sum(denied), MAX_COUNT),
        overhead=min(overhead[0], page.BYTES_MASK),
        peak=min(max(peak), page.BYTES_MASK),
        mark=charged + granted,
    )
