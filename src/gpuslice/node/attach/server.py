"""The attach socket: a process says its session and token, and gets a slot and the session's pages.

Thousands of processes keep a connection each for as long as they live, so a connection here is a socket, a callback and
nothing else. A process that has not asked within five seconds, or asks nonsense, is let go; the oldest go first when
there are too many. Requests are accepted as fast as they come, and answered one of each session in turn: a tenant that
floods the socket waits for itself.
"""

from __future__ import annotations

import array
import asyncio
import ctypes
import errno
import hmac
import os
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuslice.model.sessions import is_id
from gpuslice.node.attach import process_numbers
from gpuslice.node.attach.turns import Turns
from gpuslice.node.errors import AttachRefusedError, BrokenSessionError
from gpuslice.node.sessions import page
from gpuslice.node.sessions.registry import boottime
from gpuslice.system import processes, sockets
from gpuslice.system.hang_ups import MAX_BACKLOG

if TYPE_CHECKING:
    from pathlib import Path

    import structlog

    from gpuslice.node.attach.mappings import Mappings
    from gpuslice.node.attach.read_only_view import ReadOnlyView
    from gpuslice.node.audit import Audit
    from gpuslice.node.sessions.attribution import Surroundings
    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.session import Process, Session
    from gpuslice.system.processes import ProcessIdentity
    from gpuslice.system.sockets import Peer

PATIENCE_SECONDS: Final = 5.0
_ACCEPTS: Final = 256  # at a time, so that accepting never keeps the loop from its other work
_ANSWERS: Final = 16  # at a time: between them others are accepted
_MOST_WAITING: Final = 256  # requests of a session
_RATE: Final = 500.0  # requests of a session that are answered in a second, after as many as it has slots
_PAUSE_SECONDS: Final = 0.1
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CODES: Final = {
    page.ATTACH_DENIED: "wrong_token",
    page.ATTACH_UNKNOWN: "unknown_session",
    page.ATTACH_FULL: "session_full",
    page.ATTACH_BROKEN: "cannot_serve",
    page.ATTACH_BUSY: "busy",
}


class _Pending:
    """A connection that has not said all of its request."""

    __slots__ = ("connection", "descriptor", "received", "since", "watched")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.descriptor = connection.fileno()
        self.received = b""
        self.since = boottime()
        self.watched = False


class AttachServer:
    """Serves agent.sock."""

    def __init__(
        self,
        path: Path,
        registry: Registry,
        view: ReadOnlyView,
        audit: Audit,
        log: structlog.typing.FilteringBoundLogger,
        mappings: Mappings,
        surroundings: Surroundings,
        *,
        max_pending: int,
    ) -> None:
        self._registry = registry
        self._hang_ups = registry.hang_ups
        self._view = view
        self._audit = audit
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._mappings = mappings
        self._surroundings = surroundings
        self._numbers = process_numbers.ProcessNumbers()
        self._max_pending = max_pending
        self._pending: dict[int, _Pending] = {}
        self._turns: Turns[_Pending] = Turns(most=_MOST_WAITING, rate=_RATE, burst=2 * page.SLOTS)
        self._next_answers: asyncio.Handle | None = None
        self._complained = 0.0
        self.refused = 0
        self._listener = sockets.listen(path)
        self._loop.add_reader(self._listener, self._accept)

    # ---- connections ----

    def _accept(self) -> None:
        if self._hang_ups.backlog > MAX_BACKLOG:
            self._pause()
            return
        for _ in range(_ACCEPTS):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS:
                    self._make_room()
                return
            connection.setblocking(False)  # noqa: FBT003 - as the standard library calls it
            if self._is_crowded():
                self._drop_one()
            pending = _Pending(connection)
            self._pending[pending.descriptor] = pending
            self._receive(pending)  # the request is usually there already
            if self._pending.get(pending.descriptor) is pending:
                pending.watched = True
                self._loop.add_reader(pending.descriptor, self._receive, pending)

    def _is_crowded(self) -> bool:
        """Whether one must go for another to come: some descriptors are for those who are attached, and giving back."""
        count = len(self._pending) + len(self._turns)
        return count >= self._max_pending or (count > 0 and not self._registry.has_descriptors(count + 1))

    def _make_room(self) -> None:
        """No descriptor is left. The connection that is silent for longest goes; if none is, we wait, not spin."""
        if time.monotonic() - self._complained > 10:
            self._complained = time.monotonic()
            self._log.error("out of descriptors: raise the agent's limit of open files", operation="accept")
        if self._pending or self._turns:
            self._drop_one()
            return
        self._pause()

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener)
        self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() != -1:
            self._loop.add_reader(self._listener, self._accept)

    def _drop_one(self) -> None:
        """Of those that have not asked the oldest, or of the session with most requests, whichever are more."""
        if len(self._pending) > self._turns.longest():
            self._drop(next(iter(self._pending.values())))
        else:
            self._hang_ups.close(self._turns.take_from_longest().connection)

    def _drop(self, pending: _Pending) -> None:
        self._forget(pending)
        self._hang_ups.close(pending.connection)

    def _forget(self, pending: _Pending) -> None:
        if pending.watched:
            self._loop.remove_reader(pending.descriptor)
        del self._pending[pending.descriptor]

    def sweep(self) -> None:
        """Lets those go that never said what they want. They are in the order in which they came."""
        oldest = boottime() - PATIENCE_SECONDS
        for pending in list(self._pending.values()):
            if pending.since > oldest:
                break
            self._drop(pending)
        self._turns.forget()

    def _receive(self, pending: _Pending) -> None:
        try:
            content = self._hang_ups.receive(pending.connection, page.ATTACH_BYTES - len(pending.received))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            content = b""
        if not content:
            self._drop(pending)
            return
        pending.received += content
        nonsense = not page.ATTACH_MAGIC.to_bytes(8, "little").startswith(pending.received[:8])
        if nonsense or len(pending.received) == page.ATTACH_BYTES:
            self._forget(pending)
            self._wait_for_turn(pending)

    # ---- requests ----

    def _wait_for_turn(self, pending: _Pending) -> None:
        """A request waits with its session's, if the token is right, and with its user's otherwise."""
        request, peer = parse(pending.received), sockets.peer_of(pending.connection)
        session_id = _session_of(request)
        try:
            tenant = self._find(session_id, request).id
        except AttachRefusedError:
            tenant = f"uid {peer.uid}"
        if self._turns.add(tenant, pending):
            self._schedule_answers(0)
        else:
            busy = AttachRefusedError(page.ATTACH_BUSY, "too many requests of the session wait: ask again")
            self._refuse(pending.connection, busy, session_id, peer)

    def _schedule_answers(self, seconds: float) -> None:
        if isinstance(self._next_answers, asyncio.TimerHandle):
            self._next_answers.cancel()
            self._next_answers = None
        if self._next_answers is None:
            call = partial(self._loop.call_later, seconds) if seconds > 0 else self._loop.call_soon
            self._next_answers = call(self._answer_some)

    def _answer_some(self) -> None:
        self._next_answers = None
        try:
            for _ in range(_ANSWERS):
                if (pending := self._turns.take()) is None:
                    break
                self._answer(pending)
        finally:  # one that fails is logged, and those that wait behind it have their turn
            if (seconds := self._turns.seconds_to_wait()) is not None:
                self._schedule_answers(seconds)

    def _answer(self, pending: _Pending) -> None:
        connection, request = pending.connection, parse(pending.received)
        peer = sockets.peer_of(connection)
        session_id = _session_of(request)
        try:
            session = self._find(session_id, request)
            process = self._serve(connection, session, peer, request.flags if request else 0, pending.since)
        except AttachRefusedError as refusal:
            self._refuse(connection, refusal, session_id, peer)
        except (OSError, BrokenSessionError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            broken = AttachRefusedError(page.ATTACH_BROKEN, f"the agent cannot serve it: {reason}")
            self._refuse(connection, broken, session_id, peer)
        else:
            if process is None:
                self._hang_ups.close(connection)
            else:  # of many that start together, all are answered first
                self._loop.call_soon(self._follow, process, connection, peer)

    def _serve(
        self, connection: socket.socket, session: Session, peer: Peer, flags: int, connected: float
    ) -> Process | None:
        """Gives what was asked for, to a process that is known by its pidfd. Returns the one that has a slot now."""
        observes = bool(flags & (page.ATTACH_OBSERVER | page.ATTACH_PROCESSES))
        if not observes:
            self._make_room_for_slot()
        identity, pidfd = self._identify(connection, peer, connected)
        process = None
        try:
            self._check_pod(session, identity, pidfd)
            if flags & page.ATTACH_PROCESSES:
                self._send_processes(connection, session, identity, pidfd)
            elif observes:
                self._send(connection, session, page.NO_SLOT)
            else:
                process = self._registry.attach(session, identity, pidfd)
        finally:
            if process is None:
                os.close(pidfd)
        return process and self._attached(connection, process)

    def _follow(self, process: Process, connection: socket.socket, peer: Peer) -> None:
        session_id = process.session.id
        self._audit.write("attach", session_id=session_id, pid=peer.pid, uid=peer.uid, slot=process.slot)
        if process.connection is connection:
            self._loop.add_reader(connection.fileno(), self._connection_ended, process)

    def _find(self, session_id: str, request: page.Attach | None) -> Session:
        if request is None:
            raise AttachRefusedError(page.ATTACH_BROKEN, "this is not an attach request of this version")
        session = self._registry.sessions.get(session_id) if is_id(session_id) else None
        if session is None or session.releasing:
            raise AttachRefusedError(page.ATTACH_UNKNOWN, "there is no such session (it may have been released)")
        if not hmac.compare_digest(session.record.token.encode(), request.token):
            raise AttachRefusedError(page.ATTACH_DENIED, "the token is not the session's")
        if not session.settled or time.monotonic() < session.closed_until:
            raise AttachRefusedError(page.ATTACH_BROKEN, "the agent is still taking the session up: ask again")
        return session

    def _identify(self, connection: socket.socket, peer: Peer, connected: float) -> tuple[ProcessIdentity, int]:
        """The process that connected, and its pidfd: whatever is given is given to it, and what it may have is its."""
        if peer.pid == 0:
            raise AttachRefusedError(page.ATTACH_BROKEN, "the agent cannot see the process (give it the host's PIDs)")
        found = sockets.identify_peer(connection, peer, int(connected * _TICKS))
        if found is None:
            raise AttachRefusedError(page.ATTACH_BROKEN, "the process has ended")
        return found

    def _check_pod(self, session: Session, identity: ProcessIdentity, pidfd: int) -> None:
        """A token that was taken out of one pod is worth nothing in another."""
        workload = session.record.workload
        if workload is None or not workload.pod_uid:
            return
        pod_uid = self._surroundings.pod_of(identity.pid)
        if pod_uid is None or processes.has_ended(pidfd):
            raise AttachRefusedError(page.ATTACH_DENIED, "the agent cannot tell which pod the process is in")
        if pod_uid and pod_uid != workload.pod_uid:
            raise AttachRefusedError(page.ATTACH_DENIED, "the session is another pod's")

    def _make_room_for_slot(self) -> None:
        while (waiting := len(self._pending) + len(self._turns)) and not self._registry.has_descriptors(waiting):
            self._drop_one()
        if not self._registry.has_descriptors():
            raise AttachRefusedError(page.ATTACH_BROKEN, "the agent has no descriptors left (raise its open files)")

    def _attached(self, connection: socket.socket, process: Process) -> Process:
        try:
            self._send(connection, process.session, process.slot)
        except BaseException:
            self._registry.detach(process, "not answered")
            raise
        process.connection = connection
        return process

    def _send(self, connection: socket.socket, session: Session, slot: int) -> None:
        answer = page.Attached(
            magic=page.ATTACH_MAGIC,
            version=page.VERSION,
            status=page.ATTACH_OK,
            slot=slot,
            gpu_count=session.gpu_count,
        )
        control = self._view.open(session.control_name)
        try:
            tenant_cells = session.cells.open_for_tenant(observer=slot == page.NO_SLOT)
            try:
                rights = array.array("i", [control, tenant_cells])
                connection.sendmsg([bytes(answer)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            finally:
                os.close(tenant_cells)
        finally:
            os.close(control)

    def _send_processes(
        self, connection: socket.socket, session: Session, identity: ProcessIdentity, pidfd: int
    ) -> None:
        numbers = self._numbers.of(session, process_numbers.look_up(identity.pid, pidfd))
        answer = page.Attached(
            magic=page.ATTACH_MAGIC, version=page.VERSION, status=page.ATTACH_OK, slot=len(numbers), gpu_count=0
        )
        connection.send(bytes(answer) + b"".join(map(bytes, numbers)))  # 4 KiB at most: all or nothing

    def _refuse(self, connection: socket.socket, refusal: AttachRefusedError, session_id: str, peer: Peer) -> None:
        self.refused += 1
        self._audit.write(
            "attach",
            result="denied",
            session_id=session_id if is_id(session_id) else "",
            pid=peer.pid,
            uid=peer.uid,
            error_code=_CODES[refusal.status],
            reason=str(refusal),
        )
        text = str(refusal).encode()[:103].decode(errors="ignore").encode()
        answer = page.Attached(
            magic=page.ATTACH_MAGIC, version=page.VERSION, status=refusal.status, slot=page.NO_SLOT, message=text
        )
        try:
            connection.send(bytes(answer))
        except OSError:
            pass  # it did not wait for the answer
        finally:
            self._hang_ups.close(connection)

    def _connection_ended(self, process: Process) -> None:
        """The process ended (then its pidfd says so too), became another program, or closed what it did not know."""
        assert process.connection is not None
        self._loop.remove_reader(process.connection.fileno())
        self._hang_ups.close(process.connection)
        process.connection = None
        self._mappings.connection_ended(process)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for pending in list(self._pending.values()):
            self._drop(pending)
        if self._next_answers is not None:
            self._next_answers.cancel()
        while self._turns:
            self._turns.take_from_longest().connection.close()


def _session_of(request: page.Attach | None) -> str:
    return request.session.decode(errors="replace") if request else ""


def parse(content: bytes) -> page.Attach | None:
    """The request, or None if it is not one of this version."""
    if len(content) != ctypes.sizeof(page.Attach):
        return None
    request = page.Attach.from_buffer_copy(content)
    return request if (request.magic, request.version) == (page.ATTACH_MAGIC, page.VERSION) else None
