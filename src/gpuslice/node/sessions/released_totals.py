"""The `totals` file: what released sessions counted, so that the agent's counters never fall.

One pwrite holds the totals and the name of the session that was added last. An agent that is stopped between that and
the removal of the session's files finds the name, and does not add them again. So one session at a time is written and
its files removed: the disk thread does both in one step. In memory a session counts as soon as it is released.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice.node.sessions.session import GpuUse

_MAGIC: Final = 0x31544F54_4C535047
_RECORD: Final = struct.Struct("=Q4Q160s")
_MOST: Final = 2**63 - 1


class TotalsFile:
    """Allocations, denials, recovered bytes and breaches of sessions that are gone."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        content = os.pread(self._descriptor, _RECORD.size, 0).ljust(_RECORD.size, b"\0")
        magic, *numbers, last = _RECORD.unpack(content)
        #: Whether there was something that could not be read; counting starts at zero then.
        self.damaged = magic not in (0, _MAGIC)
        if magic != _MAGIC:
            numbers, last = [0, 0, 0, 0], b""
        self._written = list(numbers)
        self.allocations, self.denials, self.recovered_bytes, self.breaches = numbers
        self.last = last.rstrip(b"\0").decode(errors="replace")
        os.posix_fallocate(self._descriptor, 0, _RECORD.size)

    def add(self, uses: list[GpuUse]) -> None:
        """Counts a session that was released."""
        allocations, denials, recovered, breaches = _sum(uses)
        self.allocations += allocations
        self.denials += denials
        self.recovered_bytes += recovered
        self.breaches += breaches

    def write(self, name: str, uses: list[GpuUse]) -> None:
        """Adds a session to the file once, whatever happens: `name` is never used for another."""
        if name == self.last:
            return
        self.last = name
        self._written = [written + new for written, new in zip(self._written, _sum(uses), strict=True)]
        record = _RECORD.pack(_MAGIC, *(min(number, _MOST) for number in self._written), name.encode())
        os.pwrite(self._descriptor, record, 0)

    def close(self) -> None:
        os.close(self._descriptor)


def _sum(uses: list[GpuUse]) -> tuple[int, int, int, int]:
    return (
        sum(use.allocations for use in uses),
        sum(use.denials for use in uses),
        sum(use.recovered for use in uses),
        sum(use.breaches for use in uses),
    )
