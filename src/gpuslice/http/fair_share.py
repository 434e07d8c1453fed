"""Shares the time of the event loop among the addresses that clients come from.

An address that has used less than its part is served at once. The work of an address that has used more waits in a
queue, and the loop does one piece of the queue between two looks at its sockets. So no time is left unused, and an
address that sends costly requests on a thousand connections delays another's by one of them, and not by a thousand.
"""

from __future__ import annotations

from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from gpuslice.http.connection import Connection

#: The address whose request the current task answers.
caller: Final[ContextVar[str]] = ContextVar("caller", default="")

#: What an address may use at once, in seconds of the loop's time: some dozens of handshakes, hundreds of reviews.
_BURST: Final = 0.02
#: An address that was silent for so long needs no part.
_IDLE_SECONDS: Final = 1.0
#: The bytes received for pieces of work that wait.
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024


class _Account:
    """What an address has left, and what it has waiting."""

    __slots__ = ("seconds", "seen", "waiting", "waiting_bytes")

    def __init__(self, now: float) -> None:
        self.seconds = _BURST
        self.seen = now
        self.waiting: dict[Connection, int] = {}
        self.waiting_bytes = 0


class Turns:
    """One for the connections of a listener."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._accounts: dict[str, _Account] = {}
        #: Of addresses with something waiting, in the order of their turns.
        self._queue: dict[str, None] = {}
        self._waiting_bytes = 0
        self._next: asyncio.Handle | None = None
        #: What all addresses together may use before they wait, of the loop's time; and each of them.
        self.part = self._rate = 1.0

    def work(self, connection: Connection) -> None:
        """Has the connection process what came in, now or when it is its address's turn."""
        now = monotonic()
        account = self._accounts.get(connection.source) or self._open(connection.source)
        seconds = account.seconds + (now - account.seen) * self._rate
        seconds = min(seconds, _BURST)
        account.seen = now
        if seconds > 0 and not (account.waiting and connection in account.waiting):
            connection.advance()
            account.seconds = seconds - (monotonic() - now)
        else:
            account.seconds = seconds
            self._wait(connection, account)

    def wait(self, connection: Connection) -> None:
        """Queues a connection that has more to do and has had its turn."""
        self._wait(connection, self._accounts.get(connection.source) or self._open(connection.source))

    def forget(self, connection: Connection) -> None:
        """Removes a connection that has ended."""
        account = self._accounts.get(connection.source)
        if account is not None:
            self._take(connection, account)

    def forget_idle(self) -> None:
        """Removes the accounts of addresses that were silent for a while."""
        before = monotonic() - _IDLE_SECONDS
        for source in [source for source, each in self._accounts.items() if each.seen < before and not each.waiting]:
            del self._accounts[source]
        self._share_out()

    def _open(self, source: str) -> _Account:
        account = self._accounts[source] = _Account(monotonic())
        self._share_out()
        return account

    def _share_out(self) -> None:
        self._rate = self.part / max(1, len(self._accounts))

    def _wait(self, connection: Connection, account: _Account) -> None:
        self._take(connection, account)
        connection.pause()
        size = connection.unread_bytes
        account.waiting[connection] = size
        account.waiting_bytes += size
        self._waiting_bytes += size
        self._queue.setdefault(connection.source)
        if self._next is None:
            self._next = self._loop.call_soon(self._do_one)
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self._drop_one()

    def _drop_one(self) -> None:
        """Drops the latest connection of the address that has most waiting."""
        most = max((self._accounts[source] for source in self._queue), key=lambda account: account.waiting_bytes)
        next(reversed(most.waiting)).drop("out_of_memory")

    def _do_one(self) -> None:
        self._next = None
        source = next(iter(self._queue), None)
        if source is None:
            return
        account = self._accounts[source]
        connection = next(iter(account.waiting))
        self._take(connection, account)
        if self._queue.pop(source, self) is None:  # it has more, and the others go first
            self._queue[source] = None
        started = monotonic()
        connection.advance()
        account.seconds -= monotonic() - started
        account.seen = started
        if self._queue and self._next is None:
            self._next = self._loop.call_soon(self._do_one)

    def _take(self, connection: Connection, account: _Account) -> None:
        size = account.waiting.pop(connection, None)
        if size is None:
            return
        account.waiting_bytes -= size
        self._waiting_bytes -= size
        if not account.waiting:
            self._queue.pop(connection.source, None)
