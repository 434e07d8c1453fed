"""What a process has on a GPU beyond what it allocated, from NVML's count and its cell.

It is best known from a look during which the process neither allocated nor freed (its cell's mark is the same before
and after). Then it is never too high: memory is charged before the driver gives it and until after the driver has it
back, so whatever NVML counts beyond the charge is overhead. A lower value must be seen twice, because an allocation may
have been under way during all of the first look.

A process that allocates all the time gives no such look. What NVML counts beyond the larger of its charges before and
after a look is overhead, too, unless the charge was higher in between; so the least of several looks in a row counts,
and is corrected by the next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuslice.node.sessions.cells import Cell

BUSY_LOOKS: Final = 8  # in a row at a process that allocates all the time


@dataclass(slots=True)
class Overhead:
    """That of one process on one GPU."""

    #: By looks at the process while it was quiet, or what an earlier agent found.
    certain: int
    #: A value below that, seen once.
    _lower: int | None = None
    #: The least by each look since the process was quiet.
    _busy: deque[int] = field(default_factory=lambda: deque(maxlen=BUSY_LOOKS))

    def look(self, before: Cell | None, after: Cell, size: int) -> int:
        """Its overhead, where NVML counted so many bytes between these two."""
        if before is None:
            return self.certain
        if before.mark == after.mark:
            self._busy.clear()
            self._look_at_quiet(max(0, size - after.held))
            return self.certain
        self._busy.append(max(0, size - max(before.held, after.held)))
        return max(self.certain, min(self._busy)) if len(self._busy) == BUSY_LOOKS else self.certain

    def _look_at_quiet(self, found: int) -> None:
        if found >= self.certain:
            self.certain, self._lower = found, None
        elif self._lower is None:
            self._lower = found
        else:
            self.certain, self._lower = max(found, self._lower), None
