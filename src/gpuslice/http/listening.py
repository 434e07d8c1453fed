"""Sockets that wait for connections, beside those of another process of ours if need be."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Final

import structlog

from gpuslice.http.client_addresses import source_of
from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from gpuslice.http.connection_pool import ConnectionPool

_BACKLOG: Final = 4096
#: Connections accepted before open ones are served again: a flood of newcomers slows these down by this much.
_AT_ONCE: Final = 16
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RECOVERY_SECONDS: Final = 0.1


class ListenError(GpusliceError):
    """Raised when an address cannot be listened on."""


def open_socket(address: str, port: int, option: str) -> socket.socket:
    """Listens there; without an address everywhere. `option` is what a user changes if that is not possible.

    A new process can listen where the old one still does (SO_REUSEPORT), so one can take over from the other.
    """
    try:
        if not address and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG, reuse_port=True
            )
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=_BACKLOG, reuse_port=True)
    except OSError as error:
        where = f"port {port}" + (f" of {address}" if address else "")
        if error.errno == errno.EADDRINUSE:
            raise ListenError(f"{where} is in use by another program; give another with {option}") from None
        if error.errno == errno.EACCES:
            raise ListenError(f"{where} is not allowed to this user; give one above 1023 with {option}") from None
        raise ListenError(f"{where} cannot be listened on: {error.strerror or error}; see {option}") from None


def describe(listening: socket.socket, scheme: str) -> str:
    """As an address that can be typed."""
    host, port = listening.getsockname()[:2]
    name = {"::": "localhost", "0.0.0.0": "localhost"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - read
    return f"{scheme}://{name}:{port}"


class Listener:
    """Accepts connections from one socket."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[str], asyncio.Protocol],
        pool: ConnectionPool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        listening.setblocking(False)  # noqa: FBT003 - its signature
        self._socket = listening
        self._make = make
        self._pool = pool
        self._loop = loop
        self._handing_over: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        self._listen()

    def close(self) -> None:
        """Accepts the clients that have arrived, and no more: closing the socket would cut off those in its queue."""
        if self._socket.fileno() < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        for _ in range(_BACKLOG):  # while more keep coming, this must not go on for ever
            if not self._accept_one():
                break
        self._socket.close()

    @property
    def busy(self) -> bool:
        """Whether an accepted client is no connection yet."""
        return bool(self._handing_over)

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._accept_one():
                break

    def _accept_one(self) -> bool:
        """False if no client waits."""
        try:
            client, peer = self._socket.accept()
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno not in _EXHAUSTED:
                return True  # the client gave up
            self._recover(error)
            return False
        client.setblocking(False)  # noqa: FBT003 - its signature
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._hand_over(client, source_of(peer)))
        self._handing_over.add(task)
        task.add_done_callback(self._handing_over.discard)
        return True

    async def _hand_over(self, client: socket.socket, source: str) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make(source), client)
        except Exception as error:  # noqa: BLE001 - a client that is gone already, or no certificate yet
            client.close()
            self._log.debug("connection not taken", reason=str(error))

    def _recover(self, error: OSError) -> None:
        """No descriptors or no memory: drops a connection, and tries again in a moment instead of spinning."""
        self._log.warning("connections cannot be accepted", reason=error.strerror)
        self._pool.make_room()
        self._loop.remove_reader(self._socket)
        self._timer = self._loop.call_later(_RECOVERY_SECONDS, self._listen)
