"""All sessions of this agent: made, taken up after a restart, changed and released.

Sessions are folders. The disk thread makes, writes and removes them; what the agent knows of them changes on the event
loop, once the disk has it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import msgspec

from gpuslice.model.sessions import SessionState, pronounceable
from gpuslice.node.errors import AgentError, BrokenSessionError
from gpuslice.node.sessions.cells import Cells
from gpuslice.node.sessions.cells_recovery import CellsSearch, Wanted
from gpuslice.node.sessions.control_page import LeasedControlError
from gpuslice.node.sessions.record import encode_record, write_record
from gpuslice.node.sessions.released_totals import TotalsFile
from gpuslice.node.sessions.session import Process, Session, replace_control, write_session
from gpuslice.system import processes
from gpuslice.system.files import synchronize
from gpuslice.system.hang_ups import HangUps
from gpuslice.system.supervised.tasks import run_to_completion

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    import structlog

    from gpuslice.node.audit import Audit
    from gpuslice.node.disk import DiskThread
    from gpuslice.node.sessions.record import SessionRecord
    from gpuslice.node.sessions.session import GpuUse
    from gpuslice.node.sessions.state_folder import StateFolder
    from gpuslice.system.processes import ProcessIdentity

# No session's id contains a dot.
_NEW: Final = ".new-"
_GONE: Final = ".released-"
_BROKEN: Final = ".broken-"

#: How long a start waits for sessions' cells to be found. Others are searched for while these are served.
_START_SECONDS: Final = 0.5

#: In which NVML is asked several times what processes hold whose cells are lost.
_COUNTING_SECONDS: Final = 3.0

_RESERVE: Final = 64  # descriptors that no session gets: logs, metrics, the admin socket

_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of the agent or the machine, and not of a session
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_STORAGE_ERRORS: Final = {
    errno.ENOSPC: ("no_space", "make room, or give the agent another folder with --state"),
    errno.EDQUOT: ("no_space", "raise the quota, or give the agent another folder with --state"),
    errno.EROFS: ("read_only", "make the folder writable, or give the agent another with --state"),
    errno.EACCES: ("read_only", "make the folder writable, or give the agent another with --state"),
    errno.EMFILE: ("no_descriptors", "raise the agent's limit of open files"),
    errno.ENFILE: ("no_descriptors", "raise the machine's limit of open files"),
}


def boottime() -> float:
    """Seconds since boot, by a clock that cannot be set and that goes on in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Promise(NamedTuple):
    """What a session may hold of some GPUs together."""

    #: Empty while the session is being made.
    session_id: str
    whose: str
    size: int


class _UnservedError(Exception):
    """A session that is whole, and that this agent cannot take up. It stays where it is, for the next."""


class Registry:
    """The sessions, and the processes in them by number and session."""

    def __init__(
        self,
        state: StateFolder,
        audit: Audit,
        log: structlog.typing.FilteringBoundLogger,
        loop: asyncio.AbstractEventLoop,
        disk: DiskThread,
        *,
        max_descriptors: int,
    ) -> None:
        self._state = state
        self._audit = audit
        self._log = log
        self._loop = loop
        self._disk = disk
        self._max_descriptors = max_descriptors
        self._boot_id = processes.boot_id()
        self.sessions: dict[str, Session] = {}
        self.processes: dict[tuple[int, str], Process] = {}
        self._by_pid: dict[int, list[Process]] = {}
        self._search = CellsSearch()
        self.hang_ups = HangUps()
        #: Sessions whose cells are being searched for.
        self._unsettled: dict[str, Session] = {}
        self.totals = TotalsFile(state.totals)
        self.quarantined = 0
        #: Records on their way to the disk, of sessions that are being made and of those that are being changed: what
        #: they promise counts from when it was asked.
        self._being_made: dict[int, SessionRecord] = {}
        self._being_changed: dict[str, SessionRecord] = {}
        #: Sessions that may be over, for `release_over`.
        self._maybe_over: asyncio.Queue[Session] = asyncio.Queue()

    # ---- from disk ----

    def load(self) -> None:
        """Takes up what an earlier agent left. What is broken is put aside, and the rest is served."""
        if self.totals.damaged:
            self._log.error("the totals file was not readable: counters start at zero", path=str(self._state.totals))
        for folder in sorted(self._state.sessions.iterdir()):
            if _BROKEN in folder.name:
                continue
            if folder.name.startswith(_NEW):
                shutil.rmtree(folder, ignore_errors=True)
            elif folder.name.startswith(_GONE):
                self._bury(folder.name)
            else:
                try:
                    self._take_up(self._open(folder))
                except _UnservedError as error:
                    self._log.error("a session is not served", session_id=folder.name, reason=str(error))
                except (BrokenSessionError, OSError) as error:
                    self._quarantine(folder.name, str(error))
        self._search_for_cells()

    def _open(self, folder: Path) -> Session:
        """The session in the folder, with a new control page where a tenant holds the old one.

        Such a session is never put aside: one of the same name would begin with empty books while its processes hold
        memory.
        """
        try:
            return Session(folder)
        except LeasedControlError as leased:
            try:
                replace_control(folder, time.monotonic_ns(), _COUNTING_SECONDS)
            except OSError as error:
                raise _UnservedError(f"{leased}, and no other can be written: {error.strerror}") from None
            self._audit.write(
                "replace_control",
                result="error",
                session_id=folder.name,
                error_code="control_leased",
                reason=f"{leased}: processes that are attached get no more memory, and others must wait",
            )
            return Session(folder)
        except OSError as error:
            if error.errno in _PASSING:
                raise _UnservedError(f"it cannot be opened: {error.strerror}") from None
            raise

    def _take_up(self, session: Session) -> None:
        same_boot = session.record.boot_id == self._boot_id
        if not same_boot:
            self._carry_over(session)
        session.closed_until = session.record.closed_until if same_boot else 0.0
        self.sessions[session.id] = session
        session.apply(session.record)
        others = session.attached.with_other_cells()
        for slot, identity in session.attached.entries().items():
            alive = same_boot and session.attached.folded != (slot, identity)
            pidfd = processes.open_pidfd(identity) if alive else None
            if pidfd is not None:
                self._watch(session.adopt(slot, identity, pidfd, other_cells=slot in others))
        if any(not process.has_other_cells for process in session.processes.values()):
            self._unsettled[session.id] = session
        else:  # no process has its cells
            self._settle(session, None)
        if session.record.owner is not None and same_boot:
            self.watch_owner(session, processes.open_pidfd(session.record.owner))
        session.control.heartbeat.value = time.monotonic_ns()
        self._log.info("session taken up", session_id=session.id, processes=len(session.processes))

    def _search_for_cells(self) -> None:
        """Finds the cells that processes have. A tenant that hides them makes only its own session wait."""
        self._search.start(
            [
                Wanted(
                    session.id,
                    session.attached.cells_inode,
                    session.gpu_count,
                    tuple(process.pid for process in session.processes.values() if not process.has_other_cells),
                )
                for session in self._unsettled.values()
            ]
        )
        deadline = time.monotonic() + _START_SECONDS
        while self._unsettled and time.monotonic() < deadline:
            self.settle_found(wait=0.05)
            for session in self.sessions.values():
                session.control.heartbeat.value = time.monotonic_ns()

    def settle_found(self, *, wait: float = 0.0) -> None:
        """Goes on with what searches for cells have found since, and without what they do not find."""
        while self._unsettled and (result := self._search.result(wait)) is not None:
            if (session := self._unsettled.pop(result.session_id, None)) is not None:
                self._settle(session, result.descriptor)
            elif result.descriptor is not None:
                os.close(result.descriptor)
        for session_id in self._search.stuck():
            if (session := self._unsettled.pop(session_id, None)) is not None:
                self._settle(session, None)

    def _settle(self, session: Session, descriptor: int | None) -> None:
        lost = descriptor is None and bool(session.processes)
        for identity, size in session.settle(None if descriptor is None else Cells(descriptor, session.gpu_count)):
            self._audit.write("recover", session_id=session.id, pid=identity.pid, size=size)
        if lost:
            session.closed_until = max(session.closed_until, time.monotonic() + _COUNTING_SECONDS)
            self._audit.write(
                "replace_cells",
                result="error",
                session_id=session.id,
                error_code="cells_lost",
                reason="no process of the session has its cells open: those that are attached get no more memory",
                pids=[process.pid for process in session.processes.values()][:16],
            )

    def _carry_over(self, session: Session) -> None:
        """The machine was started anew: no process of then lives, and the clock counts from zero."""
        record = session.record
        expires = None
        if record.ttl_seconds is not None:
            expires = boottime() + max(0.0, record.created + record.ttl_seconds - time.time())
        carried = msgspec.structs.replace(record, boot_id=self._boot_id, expires=expires, closed_until=0.0)
        with suppress(OSError):  # at a start, when nothing is served yet
            write_record(session.folder, encode_record(carried))
            session.apply(carried)

    def _quarantine(self, name: str, reason: str) -> None:
        self.quarantined += 1
        if (session := self.sessions.pop(name, None)) is not None:
            session.say_released()
            self._let_go(session)
            self._unsettled.pop(name, None)
        taken = {folder.name for folder in self._state.sessions.iterdir()}
        aside = next(new for number in range(1, 10**6) if (new := f"{name}{_BROKEN}{number}") not in taken)
        with suppress(OSError):
            (self._state.sessions / name).rename(self._state.sessions / aside)
        self._audit.write(
            "quarantine", result="error", session_id=name, error_code="broken_session", reason=reason, moved_to=aside
        )

    # ---- made, changed and released ----

    def has_descriptors(self, pending: int = 0) -> bool:
        """Whether there is room for one more session or process: a process costs two, a session up to four."""
        in_use = 2 * len(self.processes) + 4 * len(self.sessions) + pending + self.hang_ups.backlog
        return in_use + _RESERVE <= self._max_descriptors

    async def create(self, record: SessionRecord, owner_pidfd: int | None) -> Session:
        """Makes the session with the id that it has, else with its name as its id; or nothing at all.

        The owner's pidfd is the registry's from here on, unless this raises.
        """
        if not self.has_descriptors():
            raise storage_error("the session cannot be made", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        self._being_made[id(record)] = record
        return await run_to_completion(self._create(record, owner_pidfd))

    async def _create(self, record: SessionRecord, owner_pidfd: int | None) -> Session:
        try:
            session = await self._disk.run(self._make_folder, record)
            session.settle(None)
        except OSError as error:
            raise storage_error("the session cannot be made", error) from None
        finally:
            del self._being_made[id(record)]
        session.control.heartbeat.value = time.monotonic_ns()
        self.sessions[session.id] = session
        self.watch_owner(session, owner_pidfd)
        return session

    def _make_folder(self, record: SessionRecord) -> Session:
        """In the disk thread, which makes one session at a time: an id that is free stays so."""
        record = msgspec.structs.replace(record, id=record.id or self._free_id(record.name), boot_id=self._boot_id)
        record.name = record.name or record.id
        workshop = self._state.sessions / f"{_NEW}{record.id}"
        place = self._state.sessions / record.id
        try:
            workshop.mkdir(mode=0o700)
            write_session(workshop, record, time.monotonic_ns())
            workshop.rename(place)
        except OSError:
            shutil.rmtree(workshop, ignore_errors=True)
            raise
        try:
            synchronize(self._state.sessions)
            return Session(place)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def _free_id(self, name: str) -> str:
        taken = {folder.name for folder in self._state.sessions.iterdir()}
        if name in taken:
            raise AgentError(
                "name_taken",
                f"there is a session {name!r} already",
                field="name",
                remedy=f"choose another name, or end it with `gpuslice session release {name}`",
            )
        return name or next(new for _ in range(10**6) if (new := pronounceable(secrets.randbits(32))) not in taken)

    def promises(self, uuids: Collection[str]) -> list[Promise]:
        """What sessions may hold of these GPUs, those included that are being made or changed."""
        records = [(session.id, session.record) for session in self.sessions.values()]
        records += [("", record) for record in self._being_made.values()]
        found = []
        for session_id, record in records:
            changed = self._being_changed.get(session_id, record)
            size = max(sum(gpu.limit_bytes for gpu in each.gpus if gpu.uuid in uuids) for each in (record, changed))
            if size:
                found.append(Promise(session_id, _whose(record), size))
        return found

    async def update(self, session: Session, change: Callable[[SessionRecord], SessionRecord]) -> None:
        """Changes the session's record: first on disk, then in the page, so that a failure changes nothing.

        Raises OSError. `change` is given the record as it is when it is this change's turn.
        """
        await run_to_completion(self._update(session, change))

    async def _update(self, session: Session, change: Callable[[SessionRecord], SessionRecord]) -> None:
        async with session.changing:
            if not self._has(session):
                return  # released meanwhile
            changed = change(session.record)
            self._being_changed[session.id] = changed
            try:
                await self._disk.run(write_record, session.folder, encode_record(changed))
            finally:
                del self._being_changed[session.id]
            if self._has(session):  # else the agent has stopped meanwhile, and the next one reads the record
                session.apply(changed)

    async def release(self, session: Session, reason: str) -> None:
        """Forgets the session. Processes that are still attached keep what they hold and get no more."""
        session.releasing = True  # at once: no process attaches while the disk is waited for
        await run_to_completion(self._release(session, reason))

    async def _release(self, session: Session, reason: str) -> None:
        async with session.changing:
            if not self._has(session):
                return  # another release was first
            session.releasing = True
            try:
                grave, folder = await self._disk.run(self._rename_to_grave, session)
            except OSError as error:
                session.releasing = False
                raise storage_error(f"session {session.id} cannot be released", error) from None
            if not self._has(session):
                return  # the agent has stopped meanwhile, and the next one buries what is in the grave
            session.say_released()
            del self.sessions[session.id]
            self._unsettled.pop(session.id, None)
            uses = session.use()
            self.totals.add(uses)
            self._let_go(session)
        self._audit.write("release", session_id=session.id, uid=session.record.owner_uid, reason=reason)
        await self._disk.run(self._bury_released, grave, folder, uses)

    def _has(self, session: Session) -> bool:
        """Whether the session's files are open here; while the disk is waited for, they may be let go."""
        return self.sessions.get(session.id) is session

    def _rename_to_grave(self, session: Session) -> tuple[str, Path]:
        """A name that the next agent does not take for a session; and where the session's files are now."""
        grave = f"{_GONE}{session.id}-{secrets.token_hex(8)}"
        try:
            return grave, session.folder.rename(self._state.sessions / grave)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            return grave, session.folder  # not even a name finds room

    def _bury_released(self, grave: str, folder: Path, uses: list[GpuUse]) -> None:
        try:
            self.totals.write(grave, uses)
        except OSError as error:
            self._log.error("totals are not written down", session_id=grave, reason=error.strerror)
        shutil.rmtree(folder, ignore_errors=True)

    def _let_go(self, session: Session) -> None:
        """Stops watching the session's processes, and closes its files."""
        for process in session.processes.values():
            self._forget(process)
            self._unwatch(process)
        self.watch_owner(session, None)
        session.close()

    def _bury(self, grave: str) -> None:
        """What release would have done next when its agent was stopped."""
        folder = self._state.sessions / grave
        with suppress(BrokenSessionError, OSError):
            if grave != self.totals.last:
                session = Session(folder, session_id=grave.removeprefix(_GONE).rpartition("-")[0])
                for slot, identity in session.attached.entries().items():
                    session.adopt(slot, identity, -1)
                uses = session.use()
                self.totals.add(uses)
                self.totals.write(grave, uses)
                session.close()
        shutil.rmtree(folder, ignore_errors=True)

    def release_if_over(self, session: Session) -> None:
        """Has the session released if no process is in it and none can come: it expired, or its owner is gone."""
        if self._is_over(session):
            self._maybe_over.put_nowait(session)

    def _is_over(self, session: Session) -> bool:
        record = session.record
        orphaned = record.owner is not None and session.owner_pidfd is None
        idle = session.settled and not session.processes
        present = self.sessions.get(session.id) is session and not session.releasing
        return present and idle and (orphaned or record.state is SessionState.EXPIRED)

    async def release_over(self) -> NoReturn:
        """Until cancelled: releases sessions that are over."""
        while True:
            session = await self._maybe_over.get()
            if not self._is_over(session):
                continue
            expired = session.record.state is SessionState.EXPIRED
            try:
                await self.release(session, "expired" if expired else "owner_gone")
            except AgentError as error:  # tried again with the next sweep
                self._log.error("release failed", session_id=session.id, error_code=error.code, reason=error.message)

    # ---- processes ----

    def attach(self, session: Session, identity: ProcessIdentity, pidfd: int) -> Process:
        """Gives the process a slot. The pidfd is the registry's from here on, unless this raises."""
        if (before := self.processes.get((identity.pid, session.id))) is not None:
            self.detach(before, "attached again")
        process = session.give_slot(identity, pidfd)
        self._watch(process)
        return process

    def detach(self, process: Process, reason: str) -> None:
        """Takes the slot of a process that is gone or needs it no more."""
        session = process.session
        if self.processes.get(process.key) is not process:
            return
        self._forget(process)
        try:
            recovered = session.take_slot(process)
        finally:  # or a pidfd that stays readable would call this forever
            self._unwatch(process)
        self._audit.write("detach", session_id=session.id, pid=process.pid, size=recovered, reason=reason)
        self.release_if_over(session)

    def of(self, pid: int) -> list[Process]:
        """The process's places in sessions, in the order in which it came to them."""
        return self._by_pid.get(pid, [])

    def _forget(self, process: Process) -> None:
        del self.processes[process.key]
        self._by_pid[process.pid].remove(process)
        if not self._by_pid[process.pid]:
            del self._by_pid[process.pid]

    def _watch(self, process: Process) -> None:
        self.processes[process.key] = process
        self._by_pid.setdefault(process.pid, []).append(process)
        # Soon, not now: of many that start together, all are answered first. An end before that is seen all the same.
        self._loop.call_soon(self._follow, process)

    def _follow(self, process: Process) -> None:
        if self.processes.get(process.key) is process:
            self._loop.add_reader(process.pidfd, self.detach, process, "ended")

    def _unwatch(self, process: Process) -> None:
        self._loop.remove_reader(process.pidfd)
        os.close(process.pidfd)
        if process.connection is not None:
            self._loop.remove_reader(process.connection.fileno())
            self.hang_ups.close(process.connection)
            process.connection = None

    def watch_owner(self, session: Session, pidfd: int | None) -> None:
        """Follows the process that made the session, in place of the one before."""
        if session.owner_pidfd is not None:
            self._loop.remove_reader(session.owner_pidfd)
            os.close(session.owner_pidfd)
        session.owner_pidfd = pidfd
        if pidfd is not None:
            self._loop.add_reader(pidfd, self._owner_ended, session)

    def _owner_ended(self, session: Session) -> None:
        self.watch_owner(session, None)
        self.release_if_over(session)

    def count_breach(
        self,
        session: Session,
        gpu: int,
        *,
        reason: str,
        pid: int | None = None,
        size: int | None = None,
        command: str = "",
    ) -> None:
        """Counts a breach, and says so."""
        session.count_breach(gpu)
        self._audit.write(
            "breach",
            result="breach",
            session_id=session.id,
            pid=pid,
            size=size,
            error_code=reason,
            gpu=session.record.gpus[gpu].uuid,
            command=command,
        )

    def close(self) -> None:
        """Lets go of everything; the sessions stay for the next agent."""
        for session in self.sessions.values():
            self._let_go(session)
        self.sessions.clear()
        self.totals.close()


def _whose(record: SessionRecord) -> str:
    """What people know it by: the pod, where there is one."""
    workload = record.workload
    name = record.id or record.name or "a session that is being made"
    return name if workload is None or not workload.pod else f"{workload.namespace}/{workload.pod}"


def storage_error(what: str, error: OSError) -> AgentError:
    """An error of the state folder, as the caller is told it."""
    code, remedy = _STORAGE_ERRORS.get(error.errno or 0, ("storage", "see the agent's log"))
    return AgentError(code, f"{what}: {error.strerror}", remedy=remedy)
