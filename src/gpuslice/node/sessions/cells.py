"""The cells of a session: what each process on each GPU says it holds.

They are a memfd, sealed at its final length: tenants hold it open for writing and may put anything into it, but can
neither cut it off (which would kill the processes that map it) nor grow it (which would fill the machine). The agent
reads and writes it with pread and pwrite, and believes no number beyond what a cell can honestly hold.

It has no name in any folder. It lives in the processes that have it open, which is how the next agent finds it
(gpuslice.node.sessions.cells_recovery).

A live cell is one aligned word per number, copied whole by the kernel; each number is right for itself, and nothing
here needs two of them at the same instant. A dead process's cell does not change any more: what is folded is exact.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuslice.node.sessions import page

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What `readlink /proc/PID/fd/N` shows of it.
LINK: Final = "/memfd:gpuslice-cells (deleted)"
SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
#: More than any process can honestly count to.
MAX_COUNT: Final = 2**48
Mark = tuple[int, ...]
_NAME: Final = LINK.removeprefix("/memfd:").removesuffix(" (deleted)")
_MFD_NOEXEC_SEAL: Final = 8
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


class Cells:
    """A session's cells, by descriptor."""

    def __init__(self, descriptor: int, gpu_count: int) -> None:
        """Takes the descriptor over. `is_sealed` must be true of it."""
        self._descriptor = descriptor
        self._gpu_count = gpu_count
        self._allocated = 0  # slots whose cells have memory behind them
        self.inode = os.fstat(descriptor).st_ino

    def open_for_tenant(self, *, observer: bool) -> int:
        """A descriptor to pass on. Never the agent's own: what a tenant sets on it (O_APPEND) would hold for both."""
        access = os.O_RDONLY if observer else os.O_RDWR
        return os.open(f"/proc/self/fd/{self._descriptor}", access | os.O_CLOEXEC | os.O_NONBLOCK)

    def ensure(self, slot: int) -> None:
        """Gives the slot's cells memory: a tenant that writes where there is none left would be killed by SIGBUS."""
        if slot < self._allocated:
            return
        if self._allocated == 0:
            os.posix_fallocate(
                self._descriptor, page.clocks_offset(self._gpu_count), self._gpu_count * page.CLOCK_BYTES
            )
        first = slot - slot % _CHUNK
        for gpu in range(self._gpu_count):
            os.posix_fallocate(self._descriptor, page.cell_offset(gpu, first), _CHUNK * page.SLOT_BYTES)
        self._allocated = first + _CHUNK

    def read(self, gpu: int, slots: int) -> list[Cell]:
        """The first `slots` cells of a GPU."""
        content = os.pread(self._descriptor, slots * page.SLOT_BYTES, page.cell_offset(gpu, 0))
        return [_believed(words) for words in page.SLOT_WORDS.iter_unpack(content)]

    def read_slot(self, slot: int) -> list[Cell]:
        """One slot's cells, one per GPU."""
        return [self.read_one(gpu, slot) for gpu in range(self._gpu_count)]

    def read_one(self, gpu: int, slot: int) -> Cell:
        content = os.pread(self._descriptor, page.SLOT_BYTES, page.cell_offset(gpu, slot))
        return _believed(page.SLOT_WORDS.unpack(content))

    def write_overhead(self, gpu: int, slot: int, overhead: int) -> None:
        offset = page.cell_offset(gpu, slot) + page.Cell.overhead.offset
        os.pwrite(self._descriptor, _WORD.pack(min(overhead, page.BYTES_MASK)), offset)

    def clear(self, slot: int) -> None:
        for gpu in range(self._gpu_count):
            os.pwrite(self._descriptor, _EMPTY, page.cell_offset(gpu, slot))

    def close(self) -> None:
        os.close(self._descriptor)


def make_cells(gpu_count: int) -> Cells:
    """New cells, all zero and sealed."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create(_NAME, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.memfd_create(_NAME, flags)  # Linux before 6.3
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, page.cells_bytes(gpu_count))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        return Cells(descriptor, gpu_count)
    except BaseException:
        os.close(descriptor)
        raise


def is_sealed(descriptor: int, gpu_count: int) -> bool:
    """Whether this is memory that has the length of a session's cells for good. No file system is asked before."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        return False
    return seals & SEALS == SEALS and os.fstat(descriptor).st_size == page.cells_bytes(gpu_count)


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
