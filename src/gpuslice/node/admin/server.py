"""The admin socket: sessions are made, shown, changed and released here, one JSON line each way.

A client must know the agent's token. To change a session is for its owner, for root, and for the agent's user.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.model.sessions import OnBreach, SessionState, check_name
from gpuslice.node.admin import messages, shares, views
from gpuslice.node.admin.connection_limits import ConnectionLimits
from gpuslice.node.errors import AgentError
from gpuslice.node.sessions.record import SessionRecord
from gpuslice.node.sessions.registry import boottime, storage_error
from gpuslice.system import processes, sockets
from gpuslice.system.supervised.threads import InspectionTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import structlog

    from gpuslice.node.admin.room import Room
    from gpuslice.node.audit import Audit
    from gpuslice.node.sessions.record import GpuRecord
    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.session import Session
    from gpuslice.node.usage.crosscheck import CrossCheck
    from gpuslice.system.processes import ProcessIdentity
    from gpuslice.system.sockets import Peer
    from gpuslice.system.supervised.threads import InspectionThread

_PATIENCE_SECONDS: Final = 5.0
_MAX_SECONDS: Final = 100 * 365 * 86400.0

#: After these the agent hangs up: a client that does not know the token holds no connection for longer than one line.
_HANG_UP_CODES: Final = ("wrong_token", "bad_request", "version")

_decoder: Final[msgspec.json.Decoder[messages.Request]] = msgspec.json.Decoder(messages.Request)


class Admin:
    """Answers requests."""

    def __init__(
        self,
        registry: Registry,
        room: Room,
        check: CrossCheck,
        audit: Audit,
        token: str,
        socket: Path,
        status: Callable[[], messages.AgentView],
        thread: InspectionThread,
    ) -> None:
        self._registry = registry
        self._room = room
        self._check = check
        self._audit = audit
        self._token = token.encode()
        self._socket = socket
        self._status = status
        self._thread = thread

    async def answer(self, line: bytes, peer: Peer) -> tuple[bytes, bool]:
        """The answer to a line, whatever it is, and whether the client may send another."""
        answer = await self._answer(line, peer)
        await self._audit.flush()  # what was done is in the log before it is acknowledged, if the disk allows
        return messages.encode(answer), answer.error is None or answer.error.code not in _HANG_UP_CODES

    async def _answer(self, line: bytes, peer: Peer) -> messages.Answer:
        operation = "admin"
        try:
            request = decode(line)
            operation = str(request.__struct_config__.tag)
            self._check_token(request.token)
            result = await self._serve(request, peer)
        except AgentError as error:
            self._audit.write(
                operation, result="refused", pid=peer.pid, uid=peer.uid, error_code=error.code, reason=error.message
            )
            problem = messages.Problem(code=error.code, message=error.message, field=error.field, remedy=error.remedy)
            return messages.Answer(ok=False, error=problem)
        return messages.Answer(ok=True, result=msgspec.Raw(msgspec.json.encode(result)))

    def _check_token(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(errors="replace"), self._token):
            raise AgentError(
                "wrong_token",
                "the token is not the agent's",
                field="token",
                remedy="set GPUSLICE_IPC_TOKEN to what the agent was started with",
            )

    async def _serve(self, request: messages.Request, peer: Peer) -> object:
        match request:
            case messages.Create():
                return await self._view(await self._create(request, peer), peer)
            case messages.List():
                return await self._list(peer)
            case messages.Show():
                return await self._view(self._find(request.id), peer)
            case messages.Limit():
                return await self._view(await self._limit(request, peer), peer)
            case messages.Release():
                return await self._release(request, peer)
            case messages.Status():
                await self._check.first_look()
                return self._status()

    # ---- requests ----

    async def _list(self, peer: Peer) -> list[messages.SessionView]:
        """All of them, with pauses: a process that attaches or ends does not wait for a long list."""
        shown = []
        for session in list(self._registry.sessions.values()):
            commands = await self._commands(session)
            if self._registry.sessions.get(session.id) is session:
                shown.append(views.view(session, self._socket, commands, with_token=_may_change(session, peer)))
                await asyncio.sleep(0)
        return shown

    async def _create(self, request: messages.Create, peer: Peer) -> Session:
        try:
            name = check_name(request.name) if request.name else ""
        except ValueError as error:
            raise AgentError("bad_name", str(error), field="name") from None
        if request.on_breach not in list(OnBreach):
            raise AgentError("bad_on_breach", f"{request.on_breach!r} is not report or kill", field="on_breach")
        ttl, grace = request.ttl_seconds, request.grace_seconds
        if ttl is not None and not 0 < ttl <= _MAX_SECONDS:
            raise AgentError("bad_ttl", "the time to live must be above 0 and below 100 years", field="ttl_seconds")
        if not 0 <= grace <= _MAX_SECONDS:
            raise AgentError("bad_grace", "the grace must not be negative", field="grace_seconds")
        gpus = await self._resolve(request)
        owner, owner_pidfd = (None, None) if request.owner_pid is None else _owner(request.owner_pid, peer)
        record = SessionRecord(
            id="",
            name=name,
            token=secrets.token_urlsafe(32),
            owner_uid=peer.uid,
            owner_gid=peer.gid,
            owner=owner,
            gpus=gpus,
            created=time.time(),
            ttl_seconds=ttl,
            expires=None if ttl is None else boottime() + ttl,
            boot_id="",
            grace_seconds=grace,
            on_breach=OnBreach(request.on_breach),
            ttl_kill=request.ttl_kill,
        )
        try:
            if not request.overcommit:
                self._room.check(gpus, self._check.machine)
            session = await self._registry.create(record, owner_pidfd)
        except BaseException:
            if owner_pidfd is not None:
                os.close(owner_pidfd)
            raise
        self._audit.write(
            "create", session_id=session.id, pid=peer.pid, uid=peer.uid, size=sum(gpu.limit_bytes for gpu in gpus)
        )
        return session

    async def _resolve(self, request: messages.Create) -> list[GpuRecord]:
        """The GPUs that the request means; NVML is asked anew before one is said to be unknown."""
        await self._check.first_look()
        try:
            return shares.resolve(request.gpus, request.limit, self._check.machine)
        except AgentError as error:
            if error.code not in ("unknown_gpu", "no_gpus"):
                raise
        await self._check.look_again()
        return shares.resolve(request.gpus, request.limit, self._check.machine)

    async def _limit(self, request: messages.Limit, peer: Peer) -> Session:
        session = self._own(request.id, peer)
        if not any(self._concerns(request, gpu) for gpu in session.record.gpus):
            raise AgentError("unknown_gpu", f"session {session.id} has no GPU {request.gpu!r}", field="gpu")
        try:
            await self._registry.update(session, partial(self._with_limit, session, request))
        except OSError as error:
            raise storage_error(f"the limit of session {session.id} cannot be changed", error) from None
        gpus = self._find(session.id).record.gpus
        self._tolerate(session, request)
        self._audit.write(
            "limit", session_id=session.id, pid=peer.pid, uid=peer.uid, size=sum(gpu.limit_bytes for gpu in gpus)
        )
        return session

    def _with_limit(self, session: Session, request: messages.Limit, record: SessionRecord) -> SessionRecord:
        machine = {gpu.uuid: gpu.memory_bytes for gpu in self._check.machine}
        gpus = []
        for gpu, held in zip(record.gpus, self._held(session), strict=True):
            if self._concerns(request, gpu):
                new = shares.limit_bytes(request.limit, machine.get(gpu.uuid, 0))
                gpus.append(msgspec.structs.replace(gpu, limit_bytes=new, tolerated_bytes=held))
            else:
                gpus.append(gpu)
        if not request.overcommit:
            raised = [new for new, old in zip(gpus, record.gpus, strict=True) if new.limit_bytes > old.limit_bytes]
            self._room.check(raised, self._check.machine, instead_of=record.id)
        return msgspec.structs.replace(record, gpus=gpus)

    def _tolerate(self, session: Session, request: messages.Limit) -> None:
        """What was granted under a higher limit is no breach of the lower one, also while the disk was waited for."""
        for gpu, held in zip(session.record.gpus, self._held(session), strict=True):
            if self._concerns(request, gpu):
                gpu.tolerated_bytes = max(gpu.tolerated_bytes, held)

    def _concerns(self, request: messages.Limit, gpu: GpuRecord) -> bool:
        return request.gpu is None or _names(request.gpu, gpu.uuid, self._check.index_of(gpu.uuid))

    def _held(self, session: Session) -> list[int]:
        """What the session has on each of its GPUs, by its cells or by NVML."""
        return [
            max(use.held + use.overhead, self._check.held(session, gpu.uuid))
            for gpu, use in zip(session.record.gpus, session.use(), strict=True)
        ]

    async def _release(self, request: messages.Release, peer: Peer) -> messages.SessionView:
        commands = await self._commands(self._own(request.id, peer))
        session = self._own(request.id, peer)
        if session.processes and not request.force:
            pids = ", ".join(str(process.pid) for process in list(session.processes.values())[:8])
            raise AgentError(
                "in_use",
                f"session {session.id} has {len(session.processes)} process(es): {pids}",
                field="id",
                remedy="end them first, or say --force: they keep what they hold and get no more",
            )
        shown = views.view(session, self._socket, commands, with_token=True)
        await self._registry.release(session, f"asked by uid {peer.uid}")
        shown.state = SessionState.RELEASED.value
        return shown

    # ---- who may do what ----

    def _find(self, session_id: str) -> Session:
        found = self._registry.sessions.get(session_id)
        if found is None:
            raise AgentError(
                "unknown_session", f"there is no session {session_id!r}", field="id", remedy="see `gpuslice ps`"
            )
        return found

    def _own(self, session_id: str, peer: Peer) -> Session:
        session = self._find(session_id)
        if not _may_change(session, peer):
            raise AgentError(
                "not_yours",
                f"session {session_id} belongs to uid {session.record.owner_uid}, you are uid {peer.uid}",
                field="id",
                remedy="ask its owner or root",
            )
        return session

    async def _view(self, session: Session, peer: Peer) -> messages.SessionView:
        commands = await self._commands(session)
        session = self._find(session.id)
        return views.view(session, self._socket, commands, with_token=_may_change(session, peer))

    async def _commands(self, session: Session) -> dict[int, str]:
        """What the session's processes were started as; what the kernel calls them, where that takes too long."""
        pids = [process.pid for process in session.processes.values()]
        try:
            return await self._thread.run(partial(_commands, pids), tenant=session.id) if pids else {}
        except InspectionTimeoutError:
            return {pid: processes.name(pid) for pid in pids}


def _commands(pids: list[int]) -> dict[int, str]:
    return {pid: processes.command(pid) for pid in pids}


def decode(line: bytes) -> messages.Request:
    """The request in a line, or an AgentError that says what is wrong with it."""
    try:
        request = _decoder.decode(line)
    except msgspec.ValidationError as error:
        text = str(error)
        field = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else ""
        raise AgentError("bad_request", text, field=field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AgentError("bad_request", f"the request is not JSON: {error}") from None
    if request.version != messages.VERSION:
        raise AgentError(
            "version",
            f"the request is of version {request.version}, this agent speaks {messages.VERSION}",
            field="version",
            remedy="use agent and command of the same version",
        )
    return request


def _may_change(session: Session, peer: Peer) -> bool:
    return peer.uid in (0, os.geteuid(), session.record.owner_uid)


def _names(text: str, uuid: str, index: str | None) -> bool:
    return text in (uuid, index) or (len(text) >= 8 and uuid.startswith(text))


def _owner(pid: int, peer: Peer) -> tuple[ProcessIdentity, int]:
    """The process that the session is to end with, and its pidfd. It must be the caller's own."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        raise AgentError("bad_owner", f"there is no process {pid}", field="owner_pid") from None
    identity = processes.identify(pid, pidfd)
    if identity is None or (pid != peer.pid and peer.uid not in (0, processes.owner(pid))):
        os.close(pidfd)
        raise AgentError("bad_owner", f"process {pid} has ended or is not yours", field="owner_pid")
    return identity, pidfd


class AdminServer:
    """Serves admin.sock."""

    def __init__(self, path: Path, admin: Admin, log: structlog.typing.FilteringBoundLogger) -> None:
        self._path = path
        self._admin = admin
        self._log = log
        self._connections: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}
        self._limits = ConnectionLimits()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(
            self._talk, sock=sockets.listen(self._path), limit=messages.MAX_BYTES
        )

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections[task := asyncio.current_task()] = writer
        try:
            await self._serve(reader, writer)
        except ValueError:  # the line is too long
            writer.write(_refusal("too_long", f"a request has at most {messages.MAX_BYTES} bytes"))
        except TimeoutError:  # half a message, or a client that does not read: what it was sent waits no longer
            writer.transport.abort()
        except OSError:
            pass  # the client is gone
        except Exception:  # noqa: BLE001 - one request never ends the agent
            self._log.exception("an admin request failed", operation="admin")
        finally:
            await _hang_up(writer)
            del self._connections[task]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = sockets.peer_of(writer.get_extra_info("socket"))
        if not self._limits.has_room(peer.uid):
            writer.write(_refusal("busy", f"uid {peer.uid} has too many connections: close some, and try again"))
            return
        with self._limits.counted(peer.uid):
            await self._converse(reader, writer, peer)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: Peer) -> None:
        """Answers line by line, until one does not come in time or is not from a client that knows the token."""
        welcome = True
        while welcome and (line := await asyncio.wait_for(reader.readline(), _PATIENCE_SECONDS)):
            if not line.endswith(b"\n"):
                break
            answer, welcome = await self._admin.answer(line, peer)
            writer.write(answer)
            await asyncio.wait_for(writer.drain(), _PATIENCE_SECONDS)

    async def close(self) -> None:
        """Hangs up, and waits until every request that was begun is done."""
        if self._server is not None:
            self._server.close()
        for writer in self._connections.values():
            writer.close()
        if tasks := [task for task in self._connections if task is not None]:
            await asyncio.wait(tasks, timeout=1)


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Closes the connection, and hears how it ended: an error that nobody asks for is logged when it is collected."""
    writer.close()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await writer.wait_closed()
    except TimeoutError:
        writer.transport.abort()
    except OSError:
        pass  # the client went first


def _refusal(code: str, message: str) -> bytes:
    return messages.encode(messages.Answer(ok=False, error=messages.Problem(code=code, message=message)))
