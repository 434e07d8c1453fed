"""What processes really hold, by NVML, against what their slots say.

The difference is the slot's overhead: contexts and modules, which no program asks for by name. A process with memory on
a GPU and no slot, and a session above its limit by NVML's count, are breaches.

A process without a slot may be about to get one: it was started while the agent was away, or waits for the answer. So
it is reported at once, and ended only if it is still without one when every honest process has asked again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuslice.model.sessions import OnBreach
from gpuslice.node.gpus.nvml import GpuInfo, Nvml, NvmlUnavailableError, Usage
from gpuslice.node.sessions.attribution import may_end
from gpuslice.node.sessions.registry import boottime
from gpuslice.node.usage.overhead import Overhead
from gpuslice.system import processes
from gpuslice.system.supervised.threads import InspectionTimeoutError, in_thread

if TYPE_CHECKING:
    import structlog

    from gpuslice.node.audit import Audit
    from gpuslice.node.sessions.attribution import Attribution
    from gpuslice.node.sessions.cells import Cell
    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.session import Process, Session
    from gpuslice.system.processes import ProcessIdentity
    from gpuslice.system.supervised.threads import InspectionThread

    _Place = tuple[tuple[int, str], int]  # a process in a session, and a GPU of that session

INTERVAL_SECONDS: Final = 0.5
_INVENTORY_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 5.0
_CERTAIN: Final = 2  # looks in a row above the limit
_SLOT_LOOKS: Final = 5  # looks in a row at a process without a slot before it is ended,
_SLOT_SECONDS: Final = 20.0  # over so long: longer than the interposer waits for the agent's answer and asks again,
_START_SECONDS: Final = 30.0  # and not before so long after the agent's start
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Breach:
    """What was found of a process that is proven to be the session's."""

    session: Session
    gpu: int
    identity: ProcessIdentity
    size: int
    reason: str

    @property
    def key(self) -> tuple[int, int, str]:
        """The process and the GPU."""
        return self.identity.pid, self.identity.start_time, self.session.record.gpus[self.gpu].uuid


class CrossCheck:
    """Looks every half second. `machine` is what NVML said the machine has."""

    def __init__(
        self,
        registry: Registry,
        audit: Audit,
        log: structlog.typing.FilteringBoundLogger,
        attribution: Attribution,
        thread: InspectionThread,
        *,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._registry = registry
        self._audit = audit
        self._log = log
        self._interval = interval
        self._nvml = Nvml()
        self._attribution = attribution
        self._thread = thread
        self._looked = asyncio.Event()
        self._wanted = asyncio.Event()
        self._cells: dict[_Place, Cell] = {}  # as they were when this look began
        self._overheads: dict[_Place, Overhead] = {}
        self._above: dict[tuple[str, int], int] = {}  # session and GPU: looks in a row above the limit
        self._sums: dict[tuple[str, int], int] = {}
        #: What each process held when its session was last within its limit: who grew since is known by it.
        self._within: dict[tuple[str, int], dict[ProcessIdentity, int]] = {}
        self._reported: set[tuple[int, int, str]] = set()  # process, its start time, GPU
        #: Processes outside of their session: since when, and how often they were seen so.
        self._outside: dict[tuple[int, int, str], tuple[float, int]] = {}
        self._started = time.monotonic()
        self.machine: list[GpuInfo] = []
        #: Of its GPUs, those that fell off the bus.
        self.lost: list[GpuInfo] = []
        self.error = "NVML was not asked yet"

    async def first_look(self) -> None:
        """Waits until NVML was asked once, whatever it said."""
        try:
            await asyncio.wait_for(self._looked.wait(), _PATIENCE_SECONDS)
        except TimeoutError:
            self._log.warning("NVML does not answer", operation="crosscheck")

    async def look_again(self) -> None:
        """Asks NVML anew what the machine has: a MIG device may have been made since."""
        self._looked.clear()
        self._wanted.set()
        await self.first_look()

    def index_of(self, uuid: str) -> str | None:
        return next((gpu.index for gpu in self.machine if gpu.uuid == uuid), None)

    def held(self, session: Session, uuid: str) -> int:
        """What NVML counted for the session on that GPU when last asked."""
        index = _index_of(session, uuid)
        return 0 if index is None else self._sums.get((session.id, index), 0)

    async def run(self) -> None:
        """Until cancelled. A failure that is not NVML's is for the supervisor."""
        self._find_overheads()
        next_inventory = 0.0
        while True:
            started = time.monotonic()
            try:
                if started >= next_inventory or self._wanted.is_set():
                    self._wanted.clear()
                    next_inventory = started + _INVENTORY_SECONDS
                    self.machine = await in_thread(self._nvml.inventory, "nvml")
                    self.lost = self._nvml.lost
                    if self.error:
                        self._log.info("NVML answers", gpus=len(self.machine))
                    self.error = ""
                if not self.error and self._registry.sessions:
                    await self._look()
            except NvmlUnavailableError as error:
                if self.error != str(error):
                    self._log.warning("no NVML: nothing is cross-checked until it answers", reason=str(error))
                self.error, self.machine, self.lost = str(error), [], []
            finally:
                if not self._wanted.is_set():
                    self._looked.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, self._interval - (time.monotonic() - started))):
                    await self._wanted.wait()

    # ---- one look ----

    def _find_overheads(self) -> None:
        """What an agent before this one found."""
        for process in self._registry.processes.values():
            for gpu, cell in enumerate(process.session.cells.read_slot(process.slot)):
                if cell.overhead:
                    self._overheads[process.key, gpu] = Overhead(cell.overhead)

    def _remember_cells(self) -> None:
        for key, gpu in self._cells:
            process = self._registry.processes.get(key)
            if process is not None and gpu < process.session.gpu_count:
                self._cells[key, gpu] = process.session.cells.read_one(gpu, process.slot)

    async def _look(self) -> None:
        self._remember_cells()
        began = boottime() * _TICKS
        usages = await in_thread(self._nvml.usages, "nvml")
        self._weigh_all(usages, began)
        await self._attribution.look_at(usage.pid for usage in usages if not self._registry.of(usage.pid))
        outside, above = self._compare(usages, began)
        for breach in [*filter(self._is_new, outside), *above]:
            await self._report(breach)
        for breach in [*self._due(outside), *above]:
            self._end(breach)

    def _weigh_all(self, usages: list[Usage], began: float) -> None:
        """At once: the more time passes, the fewer processes have neither allocated nor freed."""
        seen: set[_Place] = set()
        for usage in usages:
            process = self._attached(usage, began)
            gpu = None if process is None else _index_of(process.session, usage.uuid)
            if process is not None and gpu is not None:
                seen.add((process.key, gpu))
                self._weigh(process, gpu, usage.size)
        self._forget(seen)

    def _compare(self, usages: list[Usage], began: float) -> tuple[list[_Breach], list[_Breach]]:
        """What does not fit: processes outside of their sessions, and those that took their sessions above the limit.

        Only processes that were there before the look began are those that NVML named.
        """
        outside: list[_Breach] = []
        holders: dict[tuple[str, int], dict[ProcessIdentity, int]] = {}
        for usage in usages:
            if usage.size == 0:
                continue  # takes nothing from any session
            process = self._attached(usage, began)
            if process is not None:
                session, identity = process.session, process.identity
            elif (member := self._attribution.member(usage.pid, usage.uuid, before=began)) is not None:
                session, identity = member.session, member.identity
            else:
                continue
            gpu = _index_of(session, usage.uuid)
            if process is None:
                outside.append(_Breach(session, gpu or 0, identity, usage.size, "no_slot"))
            elif gpu is None:
                outside.append(_Breach(session, 0, identity, usage.size, "gpu_not_in_session"))
            if gpu is None:
                continue
            held = holders.setdefault((session.id, gpu), {})
            held[identity] = held.get(identity, 0) + usage.size
        self._sums = {place: sum(held.values()) for place, held in holders.items()}
        places = holders.keys() | self._above.keys() | self._within.keys()
        found = [self._compare_with_limit(place, holders.get(place, {})) for place in places]
        return outside, [breach for breach in found if breach is not None]

    def _attached(self, usage: Usage, began: float) -> Process | None:
        """The process's place in the session that has a share of that GPU, else in any."""
        places = [place for place in self._registry.of(usage.pid) if place.identity.start_time < began]
        if len(places) < 2:
            return places[0] if places else None
        # Of two sessions on the same GPU, the interposer takes the larger.
        return max(places, key=lambda place: _limit_on(place.session, usage.uuid))

    def _weigh(self, process: Process, gpu: int, size: int) -> None:
        """Puts the process's overhead right, as far as this look can tell it."""
        place = process.key, gpu
        cell = process.session.cells.read_one(gpu, process.slot)
        known = self._overheads.setdefault(place, Overhead(cell.overhead))  # an agent's before this one
        overhead = known.look(self._cells.get(place), cell, size)
        self._cells[place] = cell
        if cell.overhead != overhead:  # also if the tenant changed it
            process.session.cells.write_overhead(gpu, process.slot, overhead)
            if overhead > cell.overhead:
                process.session.say_less_room(gpu)

    def _forget(self, seen: set[_Place]) -> None:
        """Processes that are no longer on the GPU have no overhead there."""
        for place in self._overheads.keys() - seen:
            del self._overheads[place]
            if (process := self._registry.processes.get(place[0])) is not None:
                process.session.cells.write_overhead(place[1], process.slot, 0)
        for place in self._cells.keys() - seen:
            del self._cells[place]

    # ---- breaches ----

    def _compare_with_limit(self, place: tuple[str, int], held: dict[ProcessIdentity, int]) -> _Breach | None:
        session = self._registry.sessions.get(place[0])
        if session is None:
            self._above.pop(place, None)
            self._within.pop(place, None)
            return None
        gpu, size = session.record.gpus[place[1]], sum(held.values())
        allowed = max(gpu.limit_bytes, gpu.tolerated_bytes)
        gpu.tolerated_bytes = min(gpu.tolerated_bytes, size)
        if size <= allowed:
            self._above.pop(place, None)
            self._within[place] = held
            return None
        self._above[place] = self._above.get(place, 0) + 1
        if self._above[place] != _CERTAIN:
            return None
        before = self._within.get(place, {})
        grown = max(held, key=lambda identity: (held[identity] - before.get(identity, 0), held[identity]))
        return _Breach(session, place[1], grown, size, "above_limit")

    def _is_new(self, breach: _Breach) -> bool:
        """Whether it was not reported yet: once for a process and a GPU."""
        if breach.key in self._reported:
            return False
        if len(self._reported) > 10_000:
            self._reported.clear()
        self._reported.add(breach.key)
        return True

    def _due(self, outside: list[_Breach]) -> list[_Breach]:
        """Those that have been outside of their session for so long that they do not come into it any more."""
        now, before = time.monotonic(), self._outside
        self._outside, due = {}, []
        for breach in outside:
            since, looks = before.get(breach.key, (now, 0))
            self._outside[breach.key] = since, looks + 1
            patient = looks + 1 >= _SLOT_LOOKS and now - since >= _SLOT_SECONDS
            if patient and now - self._started >= _START_SECONDS:
                due.append(breach)
                self._outside[breach.key] = now, 0  # one that lives on is not told of twice a second
        return due

    async def _report(self, breach: _Breach) -> None:
        """Counts it, and says so."""
        session, identity = breach.session, breach.identity
        command = await self._command(session, identity)
        if self._registry.sessions.get(session.id) is not session:
            return
        self._registry.count_breach(
            session, breach.gpu, reason=breach.reason, pid=identity.pid, size=breach.size, command=command
        )

    def _end(self, breach: _Breach) -> None:
        """Ends the process where the session says so."""
        session = breach.session
        if breach.reason == "no_slot" and self._registry.of(breach.identity.pid):
            return  # it got one while the report was written
        if self._registry.sessions.get(session.id) is session and session.record.on_breach is OnBreach.KILL:
            self._kill(session, breach.identity, breach.reason)

    async def _command(self, session: Session, identity: ProcessIdentity) -> str:
        try:
            return await self._thread.run(partial(processes.command, identity.pid), tenant=session.id, seconds=0.5)
        except InspectionTimeoutError:
            return processes.name(identity.pid)

    def _kill(self, session: Session, identity: ProcessIdentity, reason: str) -> None:
        """Ends the process that was proven to be the session's, and no other that has its number since."""
        pidfd = processes.open_pidfd(identity)
        if pidfd is None:
            return
        with processes.closing(pidfd):
            if not may_end(session, identity.pid):
                result = "denied"
            else:
                result = "ok" if processes.send_signal(pidfd, signal.SIGKILL) else "error"
        self._audit.write("kill", result=result, session_id=session.id, pid=identity.pid, error_code=reason)


def _index_of(session: Session, uuid: str) -> int | None:
    return next((index for index, gpu in enumerate(session.record.gpus) if gpu.uuid == uuid), None)


def _limit_on(session: Session, uuid: str) -> int:
    return max((gpu.limit_bytes for gpu in session.record.gpus if gpu.uuid == uuid), default=-1)
