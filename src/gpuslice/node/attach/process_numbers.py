"""The processes of a session by the numbers that a process in a container knows them by.

NVML's stand-in asks for them, so that a tenant is shown its own session's processes and no others. The kernel says
every number of a process in the fdinfo of its pidfd, which no tenant can make large.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuslice.node.sessions import page

if TYPE_CHECKING:
    from gpuslice.node.sessions.session import Session
    from gpuslice.system.processes import ProcessIdentity

_MOST_NEW: Final = 64  # that are looked up for one request
_MOST_KEPT: Final = 16_384


class Numbers(NamedTuple):
    """A process's numbers, from the agent's namespace inwards, and its own namespace."""

    all: tuple[int, ...]
    namespace: str


class ProcessNumbers:
    """Keeps what it looked up: a process has its numbers for life."""

    def __init__(self) -> None:
        self._known: dict[ProcessIdentity, Numbers] = {}

    def of(self, session: Session, asking: Numbers) -> list[page.ProcessNumbers]:
        """The session's processes as the asking process is to know them."""
        found, new = [], 0
        for process in session.processes.values():
            numbers = self._known.get(process.identity)
            if numbers is None:
                if new == _MOST_NEW:
                    continue  # the next request finds it
                new += 1
                numbers = self._look_up(process.identity, process.pidfd)
            visible = numbers.namespace == asking.namespace and len(numbers.all) == len(asking.all)
            found.append(page.ProcessNumbers(process.pid, numbers.all[-1] if visible else 0))
        return found

    def _look_up(self, identity: ProcessIdentity, pidfd: int) -> Numbers:
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        numbers = self._known[identity] = look_up(identity.pid, pidfd)
        return numbers


def look_up(pid: int, pidfd: int) -> Numbers:
    """The numbers of the process behind a pidfd; its one number, where the kernel does not say more."""
    try:
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
        text = next((line.partition(":")[2] for line in lines if line.startswith("NSpid:")), "")
        return Numbers(tuple(map(int, text.split())) or (pid,), str(Path(f"/proc/{pid}/ns/pid").readlink()))
    except (OSError, ValueError):
        return Numbers((pid,), "")
