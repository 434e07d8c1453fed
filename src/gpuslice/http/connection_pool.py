"""All connections of the server: how many there may be, which one is dropped when there are too many, and deadlines.

Clients that have proven to be API servers have most of the pool to themselves. All others, and everything that is
still in its handshake, have a small share. A newcomer always gets in, because it may be an API server: the pool drops
a connection of the address that has most. Addresses from which an API server came before have a share of their own, so
that its next handshake succeeds whatever else connects. No connection is ever dropped for one of another share.

Where nothing tells API servers from others, there is one share for all.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from gpuslice.http.client_addresses import Sources
from gpuslice.http.fair_share import Turns

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from gpuslice.http.connection import Connection

_SWEEP_SECONDS: Final = 0.5
#: Of bodies on their way or waiting for their answer, beyond what each connection may have anyway. It bounds time as
#: well: the worst review takes 35 ms for each MiB, and an API server waits three seconds.
MAX_HELD_BYTES: Final = 32 * 1024 * 1024
FREE_HELD_BYTES: Final = 64 * 1024
#: Each of the two shares of unproven clients: an eighth, but at least some dozens, and at most a quarter.
_SHARE: Final = 8
_LARGEST_SHARE: Final = 4
_SOME_DOZENS: Final = 48
#: The part of the loop's time that clients which are not API servers may use before they wait.
UNPROVEN_PART: Final = 0.25
#: How long an address is known for the API server that came from it.
_TRUSTED_SECONDS: Final = 3600.0


class ConnectionPool:
    """The open connections."""

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._most = most
        self._loop = loop
        self._authenticated: dict[Connection, None] = {}
        self._others = Sources()
        #: Of addresses from which an API server came.
        self._trusted = Sources()
        self._trusted_until: dict[str, float] = {}
        self._large: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Schedules the work of clients that have proven nothing.
        self.turns: Final = Turns(loop)
        #: Whether API servers prove that they are API servers.
        self.authenticates = False

    def __len__(self) -> int:
        return len(self._authenticated) + len(self._others) + len(self._trusted)

    def __iter__(self) -> Iterator[Connection]:
        yield from tuple(self._others)
        yield from tuple(self._trusted)
        yield from tuple(self._authenticated)

    @property
    def in_flight(self) -> int:
        """Requests that have begun and are not answered."""
        return sum(connection.in_request for connection in self)

    @property
    def authenticated(self) -> int:
        """How many connections belong to API servers."""
        return len(self._authenticated)

    @property
    def _share(self) -> int:
        """How many unproven connections each kind of address may have."""
        if not self.authenticates:
            return self._most
        return max(1, min(max(self._most // _SHARE, _SOME_DOZENS), self._most // _LARGEST_SHARE))

    def expect_proof(self) -> None:
        """From now on API servers prove that they are API servers."""
        self.authenticates = True
        self.turns.part = UNPROVEN_PART

    def join(self, connection: Connection) -> None:
        """Adds a connection, and drops another if there are too many."""
        sources = self._sources(connection.source)
        while len(sources) >= self._share:
            _drop_least_missed(sources)
        sources.add(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def make_room(self) -> None:
        """Drops the connection that will be missed least, among those that have proven nothing."""
        _drop_least_missed(self._others if len(self._others) else self._trusted)

    def heard(self, connection: Connection) -> None:
        """Notes that the connection has sent its first bytes."""
        self._sources(connection.source).heard(connection)

    def authenticate(self, connection: Connection) -> None:
        """Moves a connection that has proven to be an API server's to the API servers' share."""
        if not self._remove_unproven(connection):
            return
        if len(self._authenticated) >= max(1, self._most - 2 * self._share):
            min(self._authenticated, key=lambda each: (each.in_request, each.deadline)).drop("crowded_out")
        self._authenticated[connection] = None
        self._trust(connection.source)

    def recognize(self, connection: Connection) -> None:
        """Notes that the connection asked for a proper review."""
        self._sources(connection.source).asked(connection)

    def leave(self, connection: Connection) -> None:
        self._large.pop(connection, None)
        self.turns.forget(connection)
        if self._authenticated.pop(connection, self) is not None:
            self._remove_unproven(connection)

    def hold(self, connection: Connection) -> None:
        """Counts a connection with a large body. When all bodies together are too large, the pool refuses one that is
        still coming in: of the address that holds most the one that has been coming longest, because an API server is
        fast. Bodies that wait for their answer stay, even if they are too much by themselves.
        """
        self._large[connection] = None
        while sum(each.held_bytes for each in self._large) > MAX_HELD_BYTES:
            held: Counter[str] = Counter()
            for each in self._large:
                held[each.source] += each.held_bytes
            incoming = (each for each in self._large if each.incoming)
            longest = max(incoming, key=lambda each: held[each.source], default=None)
            if longest is None:
                break
            longest.give_way()

    def release(self, connection: Connection) -> None:
        self._large.pop(connection, None)

    def close_quiet(self, seconds: float) -> None:
        """Closes connections that said nothing for so long."""
        for connection in self:
            connection.close_if_quiet(seconds)

    def close_unproven(self) -> None:
        """Closes idle connections that have proven nothing: their clients may connect again, and prove it."""
        for connection in (*self._others, *self._trusted):
            connection.close_if_quiet(0.0)

    def drop_unfinished_handshakes(self) -> None:
        """While the server stops, it does not wait for clients that have not begun to ask."""
        for connection in (*self._others, *self._trusted):
            if connection.in_handshake:
                connection.drop("stopped")

    def drop_all(self, reason: str) -> None:
        for connection in self:
            connection.drop(reason)

    def _sources(self, address: str) -> Sources:
        return self._trusted if address in self._trusted_until else self._others

    def _remove_unproven(self, connection: Connection) -> bool:
        return self._others.remove(connection) or self._trusted.remove(connection)

    def _trust(self, address: str) -> None:
        if address not in self._trusted_until:
            self._move(address, self._others, self._trusted)
        self._trusted_until[address] = self._loop.time() + _TRUSTED_SECONDS

    def _move(self, address: str, before: Sources, now: Sources) -> None:
        for connection in before.take(address):
            now.add(connection)
            now.heard(connection)

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        for connection in self:
            if connection.deadline <= now:
                connection.expire()
        self.turns.forget_idle()
        for address in [address for address, until in self._trusted_until.items() if until <= now]:
            del self._trusted_until[address]
            self._move(address, self._trusted, self._others)
        if len(self):
            self._timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)


def _drop_least_missed(sources: Sources) -> None:
    victim = sources.least_missed()
    if victim is not None:
        victim.drop("crowded_out")
