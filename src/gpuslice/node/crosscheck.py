"""What processes really hold, by NVML, against what their slots say.

The difference is the slot's overhead: contexts and modules, which nobody asks for by name. A process with memory on a
GPU and no slot, and a session above its limit by NVML's count, are breaches.

The overhead of a process is only taken from a look during which it neither allocated nor freed (its cell's mark is the
same before and after). Then it is never too high: memory is charged before the driver gives it and until after the
driver has it back, so whatever NVML counts beyond the charge is overhead. A lower value must be seen twice, because an
allocation may have been under way during all of the first look.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from gpuslice.model.sessions import OnBreach
from gpuslice.node import processes
from gpuslice.node.attached import Identity
from gpuslice.node.belonging import Belonging
from gpuslice.node.nvml import GpuInfo, Nvml, NvmlUnavailableError, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    import structlog

    from gpuslice.node.audit import Audit
    from gpuslice.node.cells import Mark
    from gpuslice.node.registry import Registry
    from gpuslice.node.session import Process, Session

    _Place = tuple[tuple[int, str], int]  # a process in a session, and a GPU of that session

_T = TypeVar("_T")

INTERVAL_SECONDS: Final = 0.5
_INVENTORY_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 5.0
_CERTAIN: Final = 2  # looks in a row above the limit


class CrossCheck:
    """Looks every half second. `machine` is what NVML said the machine has."""

    def __init__(
        self,
        registry: Registry,
        audit: Audit,
        log: structlog.typing.FilteringBoundLogger,
        *,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._registry = registry
        self._audit = audit
        self._log = log
        self._interval = interval
        self._nvml = Nvml()
        self._belonging = Belonging(registry)
        self._looked = asyncio.Event()
        self._wanted = asyncio.Event()
        self._marks: dict[_Place, Mark] = {}
        self._lower: dict[_Place, int] = {}  # an overhead below the one in force, seen once
        self._overheads: dict[_Place, int] = {}  # in force
        self._above: dict[tuple[str, int], int] = {}  # session and GPU: looks in a row above the limit
        self._sums: dict[tuple[str, int], int] = {}
        self._reported: set[tuple[int, int, str]] = set()  # process, its start time, GPU
        self.machine: list[GpuInfo] = []
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
        index = next((index for index, gpu in enumerate(session.record.gpus) if gpu.uuid == uuid), -1)
        return self._sums.get((session.id, index), 0)

    async def run(self) -> None:
        """Until cancelled."""
        self._find_overheads()
        next_inventory = 0.0
        while True:
            started = time.monotonic()
            try:
                if started >= next_inventory or self._wanted.is_set():
                    self._wanted.clear()
                    next_inventory = started + _INVENTORY_SECONDS
                    self.machine = await _in_thread(self._nvml.inventory)
                    if self.error:
                        self._log.info("NVML answers", gpus=len(self.machine))
                    self.error = ""
                if not self.error and self._registry.sessions:
                    self._remember_marks()
                    self._compare(await _in_thread(self._nvml.usages))
            except NvmlUnavailableError as error:
                if self.error != str(error):
                    self._log.warning("no NVML: nothing is cross-checked until it answers", reason=str(error))
                self.error, self.machine = str(error), []
            except Exception:  # noqa: BLE001 - told, and tried again
                self._log.exception("the cross-check failed", operation="crosscheck")
            if not self._wanted.is_set():
                self._looked.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), max(0.01, self._interval - (time.monotonic() - started)))

    # ---- one look ----

    def _find_overheads(self) -> None:
        """What an agent before this one found."""
        for process in self._registry.processes.values():
            for gpu, cell in enumerate(process.session.cells.read_slot(process.slot)):
                if cell.overhead:
                    self._overheads[process.key, gpu] = cell.overhead

    def _remember_marks(self) -> None:
        for key, gpu in self._marks:
            process = self._registry.processes.get(key)
            if process is not None and gpu < process.session.gpu_count:
                self._marks[key, gpu] = process.session.cells.read_one(gpu, process.slot).mark

    def _compare(self, usages: list[Usage]) -> None:
        sums: dict[tuple[str, int], int] = {}
        seen: dict[_Place, int] = {}
        largest: dict[tuple[str, int], tuple[int, int]] = {}
        for usage in usages:
            process = self._attached(usage)
            session = process.session if process else self._belonging.session_of(usage.pid)
            if session is None:
                continue
            gpu = next((index for index, gpu in enumerate(session.record.gpus) if gpu.uuid == usage.uuid), None)
            if process is None:
                self._breach(session, gpu or 0, usage, "no_slot", kill=True)
            elif gpu is None:
                self._breach(session, 0, usage, "gpu_not_in_session", kill=False)
            if gpu is None:
                continue
            if process is not None:
                seen[process.key, gpu] = usage.size
                self._weigh(process, gpu, usage.size)
            place = session.id, gpu
            sums[place] = sums.get(place, 0) + usage.size
            largest[place] = max(largest.get(place, (0, 0)), (usage.size, usage.pid))
        self._sums = sums
        self._forget(seen)
        for place in sums.keys() | self._above.keys():
            self._compare_with_limit(place, sums.get(place, 0), largest.get(place, (0, 0))[1])

    def _attached(self, usage: Usage) -> Process | None:
        """The process's place in the session that has a share of that GPU, else in any."""
        places = self._registry.of(usage.pid)
        if len(places) < 2:
            return places[0] if places else None
        # Of two sessions on the same GPU, the interposer takes the larger.
        return max(places, key=lambda place: _limit_on(place.session, usage.uuid))

    def _weigh(self, process: Process, gpu: int, size: int) -> None:
        """Puts the process's overhead right, if this look can tell it."""
        place = process.key, gpu
        cell = process.session.cells.read_one(gpu, process.slot)
        quiet = self._marks.get(place) == cell.mark
        self._marks[place] = cell.mark
        in_force = self._overheads.get(place, 0)
        overhead = in_force
        if quiet:
            found = max(0, size - cell.held)
            before = self._lower.pop(place, None)
            if found >= in_force:
                overhead = found
            elif before is not None:
                overhead = max(found, before)
            else:
                self._lower[place] = found
        self._overheads[place] = overhead
        if cell.overhead != overhead:  # also if the tenant changed it
            process.session.cells.write_overhead(gpu, process.slot, overhead)
            if overhead > cell.overhead:
                process.session.say_less_room(gpu)

    def _forget(self, seen: dict[_Place, int]) -> None:
        """Processes that are no longer on the GPU have no overhead there."""
        for place in self._overheads.keys() - seen.keys():
            if self._overheads.pop(place) and (process := self._registry.processes.get(place[0])) is not None:
                process.session.cells.write_overhead(place[1], process.slot, 0)
        for known in (self._marks, self._lower):
            for place in known.keys() - seen.keys():
                del known[place]
        self._belonging.forget_released()

    # ---- breaches ----

    def _compare_with_limit(self, place: tuple[str, int], size: int, largest_pid: int) -> None:
        session = self._registry.sessions.get(place[0])
        if session is None:
            self._above.pop(place, None)
            return
        gpu = session.record.gpus[place[1]]
        allowed = max(gpu.limit_bytes, gpu.tolerated_bytes)
        gpu.tolerated_bytes = min(gpu.tolerated_bytes, size)
        if size <= allowed:
            self._above.pop(place, None)
            return
        self._above[place] = self._above.get(place, 0) + 1
        if self._above[place] == _CERTAIN:
            usage = Usage(gpu.uuid, largest_pid, size)
            self._breach(session, place[1], usage, "above_limit", kill=True, once=False)

    def _breach(self, session: Session, gpu: int, usage: Usage, reason: str, *, kill: bool, once: bool = True) -> None:
        found = processes.status(usage.pid)
        if found is None:
            return  # it has just ended
        if once:
            key = usage.pid, found.start_time, usage.uuid
            if key in self._reported:
                return
            if len(self._reported) > 10_000:
                self._reported.clear()
            self._reported.add(key)
        self._registry.count_breach(
            session, gpu, reason=reason, pid=usage.pid, size=usage.size, command=processes.command(usage.pid)
        )
        if kill and session.record.on_breach is OnBreach.KILL:
            self._kill(session, usage.pid, found.start_time, reason)

    def _kill(self, session: Session, pid: int, start_time: int, reason: str) -> None:
        pidfd = processes.open_pidfd(Identity(pid, start_time))
        if pidfd is None:
            return
        with processes.closing(pidfd):
            killed = processes.send_signal(pidfd, signal.SIGKILL)
        self._audit.write("kill", result="ok" if killed else "error", session_id=session.id, pid=pid, error_code=reason)


def _limit_on(session: Session, uuid: str) -> int:
    return max((gpu.limit_bytes for gpu in session.record.gpus if gpu.uuid == uuid), default=-1)


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Runs it in a thread that does not keep the agent from ending, should the driver never answer."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def deliver(result: _T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failure = error
        with suppress(RuntimeError):  # the agent has ended meanwhile
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=run, name="nvml", daemon=True).start()
    return await future
