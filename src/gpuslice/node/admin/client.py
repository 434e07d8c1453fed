"""Asking an agent, from a command. Importing it must be cheap: every `gpuslice run` does."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

import msgspec

from gpuslice.model.errors import GpusliceError
from gpuslice.node.admin import messages, trust
from gpuslice.node.admin.messages import AgentView, GpuShare, SessionView
from gpuslice.node.errors import AgentError
from gpuslice.node.sessions.state_folder import TOKEN_VARIABLE, StateFolder, default_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_T = TypeVar("_T")
_TIMEOUT_SECONDS: Final = 15.0
_TIMEOUT: Final = struct.pack("@ll", int(_TIMEOUT_SECONDS), 0)


class AgentUnreachableError(GpusliceError):
    """Raised when no agent answers at the socket."""


class AgentClient:
    """One agent's admin socket. An AgentError is raised for what the agent refuses."""

    def __init__(self, path: Path, token: str = "") -> None:
        self.path = path
        self._token = token
        self._socket: socket.socket | None = None
        self._received = b""

    @classmethod
    def discover(cls, state: Path | None = None, environment: Mapping[str, str] = os.environ) -> AgentClient:
        """The agent of that state folder, of $GPUSLICE_STATE, or of the usual folder; for other users also root's."""
        named = state is not None or environment.get("GPUSLICE_STATE")
        folder = StateFolder(state.absolute() if state is not None else default_folder(environment))
        trust.check_folder(folder.folder)
        if not named and not folder.admin_socket.exists():
            folder = StateFolder(Path("/run/gpuslice"))
            trust.check_folder(folder.folder)
        return cls(folder.admin_socket, find_token(folder, environment))

    # ---- requests ----

    def create(  # noqa: PLR0913 - the fields of the request
        self,
        limit: str | int | None = None,
        *,
        gpus: Sequence[str | GpuShare] = (),
        name: str = "",
        ttl_seconds: float | None = None,
        grace_seconds: float = 10.0,
        on_breach: str = "report",
        ttl_kill: bool = False,
        owner_pid: int | None = None,
        overcommit: bool = False,
    ) -> SessionView:
        """Makes a session with that limit on each GPU (on all of the machine if none is named)."""
        request = messages.Create(
            token=self._token,
            name=name,
            limit=limit,
            gpus=[GpuShare(gpu) if isinstance(gpu, str) else gpu for gpu in gpus],
            ttl_seconds=ttl_seconds,
            grace_seconds=grace_seconds,
            on_breach=on_breach,
            ttl_kill=ttl_kill,
            owner_pid=owner_pid,
            overcommit=overcommit,
        )
        return self._ask(request, SessionView)

    def list(self) -> list[SessionView]:
        """Every session of the agent."""
        return self._ask(messages.List(token=self._token), list[SessionView])

    def show(self, session_id: str) -> SessionView:
        return self._ask(messages.Show(token=self._token, id=session_id), SessionView)

    def limit(
        self, session_id: str, limit: str | int, *, gpu: str | None = None, overcommit: bool = False
    ) -> SessionView:
        """Changes the limit on one GPU of the session, or on all of them. It holds from the next allocation on."""
        request = messages.Limit(token=self._token, id=session_id, limit=limit, gpu=gpu, overcommit=overcommit)
        return self._ask(request, SessionView)

    def release(self, session_id: str, *, force: bool = False) -> SessionView:
        """Forgets the session, and returns it as it was. With `force`, even while processes are in it."""
        return self._ask(messages.Release(token=self._token, id=session_id, force=force), SessionView)

    def status(self) -> AgentView:
        return self._ask(messages.Status(token=self._token), AgentView)

    # ---- the connection ----

    def _ask(self, request: messages.Request, result: type[_T]) -> _T:
        line = self._exchange(messages.encode(request))
        try:
            answer = msgspec.json.decode(line, type=messages.Answer)
            if answer.error is not None:
                problem = answer.error
                raise AgentError(problem.code, problem.message, field=problem.field, remedy=problem.remedy)
            return msgspec.json.decode(answer.result, type=result)
        except msgspec.MsgspecError as error:
            raise AgentUnreachableError(
                f"what answers at {self.path} is not an agent of this version ({error}): restart it"
            ) from None

    def _exchange(self, line: bytes) -> bytes:
        """Sends the line, on the connection there is or, if that has been idle for too long, on a new one."""
        for attempt in (1, 2):
            fresh = self._socket is None
            try:
                connection = self._connect()
                with suppress(BrokenPipeError):  # the agent may have said why it hung up
                    connection.sendall(line)
                if answer := self._read_line():
                    return answer
                problem = "it closed the connection"
            except OSError as error:
                problem = error.strerror or str(error)
            self.close()
            if fresh or attempt == 2:
                break
        raise AgentUnreachableError(f"no agent answers at {self.path} ({problem}): start one with `gpuslice agent`")

    def _connect(self) -> socket.socket:
        if self._socket is None:
            trust.check_socket(self.path)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            # With a timeout of Python's, a connect would fail at once where others wait for the agent, too.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEOUT)
            self._socket.connect(str(self.path))
            self._socket.settimeout(_TIMEOUT_SECONDS)
            try:
                trust.check_listener(self.path, self._socket)
            except trust.UntrustedAgentError:
                self.close()
                raise
        return self._socket

    def _read_line(self) -> bytes:
        assert self._socket is not None
        while b"\n" not in self._received:
            content = self._socket.recv(1 << 16)
            if not content:
                return b""
            self._received += content
        line, _, self._received = self._received.partition(b"\n")
        return line

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._received = None, b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def find_token(folder: StateFolder, environment: Mapping[str, str]) -> str:
    """The agent's token: from its folder, else from the environment. Inside a session the variable is the session's."""
    return folder.read_token() or environment.get(TOKEN_VARIABLE, "")
