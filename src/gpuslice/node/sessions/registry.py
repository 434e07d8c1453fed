"""All sessions of this agent: made, taken up after a restart, and released."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.model.sessions import SessionState, pronounceable
from gpuslice.node.errors import AgentError, BrokenSessionError
from gpuslice.node.sessions.cells import Cells
from gpuslice.node.sessions.cells_search import CellsSearch, Wanted
from gpuslice.node.sessions.released_totals import TotalsFile
from gpuslice.node.sessions.session import Process, Session, write_session
from gpuslice.system import processes
from gpuslice.system.files import synchronize
from gpuslice.system.hang_ups import HangUps

if TYPE_CHECKING:
    import asyncio

    import structlog

    from gpuslice.node.audit import Audit
    from gpuslice.node.sessions.record import SessionRecord
    from gpuslice.node.sessions.state_folder import StateFolder
    from gpuslice.system.processes import ProcessIdentity

# No session's id contains a dot.
_NEW: Final = ".new-"
_GONE: Final = ".released-"
_BROKEN: Final = ".broken-"

#: How long a start waits for sessions' cells to be found, and how long they are searched for while others are served.
_START_SECONDS: Final = 0.5
_SEARCH_SECONDS: Final = 10.0

#: In which NVML is asked several times what processes hold whose cells are lost.
_COUNTING_SECONDS: Final = 3.0

_RESERVE: Final = 64  # descriptors that no session gets: logs, metrics, the admin socket

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
    """Seconds since boot, by a clock that nobody sets and that goes on in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Registry:
    """The sessions, and the processes in them by number and session."""

    def __init__(
        self,
        state: StateFolder,
        audit: Audit,
        log: structlog.typing.FilteringBoundLogger,
        loop: asyncio.AbstractEventLoop,
        *,
        max_descriptors: int,
    ) -> None:
        self._state = state
        self._audit = audit
        self._log = log
        self._loop = loop
        self._max_descriptors = max_descriptors
        self._boot_id = processes.boot_id()
        self.sessions: dict[str, Session] = {}
        self.processes: dict[tuple[int, str], Process] = {}
        self._by_pid: dict[int, list[Process]] = {}
        self._search = CellsSearch()
        self.hang_ups = HangUps()
        #: Sessions whose cells are being searched for, and until when.
        self._unsettled: dict[str, float] = {}
        self.totals = TotalsFile(state.totals)
        self.quarantined = 0

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
                    self._take_up(Session(folder))
                except (BrokenSessionError, OSError) as error:
                    self._quarantine(folder.name, str(error))
        self._search_for_cells()

    def _take_up(self, session: Session) -> None:
        same_boot = session.record.boot_id == self._boot_id
        if not same_boot:
            self._carry_over(session)
        self.sessions[session.id] = session
        session.apply(session.record)
        for slot, identity in session.attached.entries().items():
            alive = same_boot and session.attached.folded != (slot, identity)
            pidfd = processes.open_pidfd(identity) if alive else None
            if pidfd is not None:
                self._watch(session.adopt(slot, identity, pidfd))
        if session.processes:
            self._unsettled[session.id] = time.monotonic() + _SEARCH_SECONDS
        else:  # nobody has its cells
            self._settle(session, None)
        if session.record.owner is not None and same_boot:
            self.watch_owner(session, processes.open_pidfd(session.record.owner))
        session.control.heartbeat.value = time.monotonic_ns()
        self._log.info("session taken up", session_id=session.id, processes=len(session.processes))

    def _search_for_cells(self) -> None:
        """Finds the cells that processes have. A tenant that hides them keeps nobody waiting but itself."""
        sessions = [self.sessions[session_id] for session_id in self._unsettled]
        self._search.start(
            [
                Wanted(
                    session.id,
                    session.attached.cells_inode,
                    session.gpu_count,
                    tuple(process.pid for process in session.processes.values()),
                )
                for session in sessions
            ]
        )
        deadline = time.monotonic() + _START_SECONDS
        while self._unsettled and time.monotonic() < deadline:
            self.settle_found(wait=0.05)
            for session in self.sessions.values():
                session.control.heartbeat.value = time.monotonic_ns()

    def settle_found(self, *, wait: float = 0.0) -> None:
        """Goes on with what searches for cells have found since, and without what they do not find in time."""
        while self._unsettled and (result := self._search.result(wait)) is not None:
            session = self.sessions.get(result.session_id)
            if session is not None and self._unsettled.pop(result.session_id, None) is not None:
                self._settle(session, result.descriptor)
            elif result.descriptor is not None:
                os.close(result.descriptor)
        now = time.monotonic()
        for session_id in [late for late, deadline in self._unsettled.items() if now > deadline]:
            del self._unsettled[session_id]
            if (session := self.sessions.get(session_id)) is not None:
                self._settle(session, None)

    def _settle(self, session: Session, descriptor: int | None) -> None:
        lost = descriptor is None and bool(session.processes)
        for identity, size in session.settle(None if descriptor is None else Cells(descriptor, session.gpu_count)):
            self._audit.write("recover", session_id=session.id, pid=identity.pid, size=size)
        if lost:
            session.closed_until = time.monotonic() + _COUNTING_SECONDS
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
        with suppress(OSError):
            session.save(msgspec.structs.replace(record, boot_id=self._boot_id, expires=expires))

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

    # ---- made and released ----

    def has_descriptors(self, pending: int = 0) -> bool:
        """Whether there is room for one more session or process: a process costs two, a session up to four."""
        in_use = 2 * len(self.processes) + 4 * len(self.sessions) + pending + self.hang_ups.backlog
        return in_use + _RESERVE <= self._max_descriptors

    def create(self, record: SessionRecord, owner_pidfd: int | None) -> Session:
        """Makes the session with the id that it has, else with the first free one; or nothing at all."""
        if not self.has_descriptors():
            raise storage_error("the session cannot be made", OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        record = msgspec.structs.replace(record, id=record.id or self._free_id(record.name), boot_id=self._boot_id)
        record.name = record.name or record.id
        workshop = self._state.sessions / f"{_NEW}{record.id}"
        place = self._state.sessions / record.id
        try:
            workshop.mkdir(mode=0o700)
            write_session(workshop, record, time.monotonic_ns())
            workshop.rename(place)
            synchronize(self._state.sessions)
            session = Session(place)
            session.settle(None)
        except OSError as error:
            shutil.rmtree(workshop, ignore_errors=True)
            shutil.rmtree(place, ignore_errors=True)
            raise storage_error("the session cannot be made", error) from None
        self.sessions[record.id] = session
        self.watch_owner(session, owner_pidfd)
        return session

    def _free_id(self, name: str) -> str:
        taken = {folder.name for folder in self._state.sessions.iterdir()}
        if not name:
            return next(new for _ in range(10**6) if (new := pronounceable(secrets.randbits(32))) not in taken)
        candidates = (name if number == 1 else f"{name}-{number}" for number in range(1, 10**6))
        return next(candidate for candidate in candidates if candidate not in taken)

    def release(self, session: Session, reason: str) -> None:
        """Forgets the session. Processes that are still attached keep what they hold and get no more."""
        grave = f"{_GONE}{session.id}-{secrets.token_hex(8)}"
        folder = self._state.sessions / grave
        try:
            session.folder.rename(folder)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise storage_error(f"session {session.id} cannot be released", error) from None
            folder = session.folder  # not even a name finds room
        session.say_released()
        del self.sessions[session.id]
        self._unsettled.pop(session.id, None)
        try:
            self.totals.add(grave, session.use())
        except OSError as error:
            self._log.error("totals are not written down", session_id=session.id, reason=error.strerror)
        self._let_go(session)
        shutil.rmtree(folder, ignore_errors=True)
        self._audit.write("release", session_id=session.id, uid=session.record.owner_uid, reason=reason)

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
                self.totals.add(grave, session.use())
                session.close()
        shutil.rmtree(folder, ignore_errors=True)

    def release_if_over(self, session: Session) -> None:
        """Releases a session that nobody is in and nobody can come to: it expired, or whoever made it is gone."""
        record = session.record
        orphaned = record.owner is not None and session.owner_pidfd is None
        expired = record.state is SessionState.EXPIRED
        idle = session.settled and not session.processes
        if not idle or not (orphaned or expired) or session.id not in self.sessions:
            return
        try:
            self.release(session, "expired" if expired else "owner_gone")
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


def storage_error(what: str, error: OSError) -> AgentError:
    """An error of the state folder, for whoever asked."""
    code, remedy = _STORAGE_ERRORS.get(error.errno or 0, ("storage", "see the agent's log"))
    return AgentError(code, f"{what}: {error.strerror}", remedy=remedy)
