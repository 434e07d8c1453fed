"""Whether processes that hung up still are the programs that attached, with the session's pages in their memory.

A process that attached keeps its connection. When that ends and the process lives on, it became another program (exec),
or closed a descriptor that it did not know. Only a look at its mappings tells, and that is the tenant's to make
expensive: it has as many of them as it likes. So a look is rare, is made in a thread with a deadline, and what is asked
regularly costs one small file: where the program's parts are in memory, which exec changes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gpuslice.system import processes
from gpuslice.system.supervised.threads import InspectionTimeoutError

if TYPE_CHECKING:
    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.session import Process
    from gpuslice.system.processes import ProcessIdentity
    from gpuslice.system.supervised.threads import InspectionThread

    _Key = tuple[int, str]  # a process in a session
    _Layout = tuple[bytes, ...]

_STATUSES: Final = 100  # processes without a connection that are asked after in a second
_LOOKS: Final = 8  # of them, those whose mappings are looked at


class Mappings:
    """Takes the slots of programs that no longer have the pages."""

    def __init__(self, registry: Registry, thread: InspectionThread) -> None:
        self._registry = registry
        self._thread = thread
        self._to_ask: list[_Key] = []
        self._to_look_at: dict[_Key, None] = {}
        #: The program that had the pages when its mappings were last looked at.
        self._programs: dict[_Key, tuple[ProcessIdentity, _Layout]] = {}

    def connection_ended(self, process: Process) -> None:
        """Its mappings are looked at soon."""
        self._to_look_at[process.key] = None

    async def sweep(self) -> None:
        """Once a second: some of those without a connection, each in its turn."""
        await self._ask()
        for key in list(self._to_look_at)[:_LOOKS]:
            del self._to_look_at[key]
            process = self._without_connection(key)
            if process is not None:
                await self._look(process)

    async def _ask(self) -> None:
        """Finds those that are not the program that had the pages, or of which that is not known."""
        if not self._to_ask:
            self._programs = {key: known for key, known in self._programs.items() if key in self._registry.processes}
            self._to_ask = [key for key, process in self._registry.processes.items() if process.connection is None]
        asked, self._to_ask = self._to_ask[:_STATUSES], self._to_ask[_STATUSES:]
        if not asked:
            return
        try:
            layouts = await self._thread.run(partial(_layouts, [pid for pid, _ in asked]))
        except InspectionTimeoutError:
            return
        for key in asked:
            process = self._without_connection(key)
            if process is not None and self._programs.get(key) != (process.identity, layouts.get(key[0])):
                self._to_look_at[key] = None

    async def _look(self, process: Process) -> None:
        work = partial(_maps, process.pid, process.cells_inode)
        try:
            layout, mapped = await self._thread.run(work, tenant=process.session.id)
        except InspectionTimeoutError:
            return  # it is asked after again
        if self._registry.processes.get(process.key) is not process:
            return
        if mapped is False and not process.has_other_cells:
            self._registry.detach(process, "left the session")
        else:  # one whose mappings cannot be read, or are too many, is not looked at again before it changes
            self._programs[process.key] = process.identity, layout

    def _without_connection(self, key: _Key) -> Process | None:
        process = self._registry.processes.get(key)
        return process if process is not None and process.connection is None else None


def _layouts(pids: list[int]) -> dict[int, _Layout]:
    return {pid: status.layout for pid in pids if (status := processes.status(pid)) is not None}


def _maps(pid: int, inode: int) -> tuple[_Layout, bool | None]:
    """The layout is read first: a program that comes in between is another than the one that is remembered."""
    status = processes.status(pid)
    return () if status is None else status.layout, processes.maps_inode(pid, inode)
