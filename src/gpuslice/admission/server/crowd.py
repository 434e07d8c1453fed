"""All connections of the server: how many there may be, who must go when there are too many, and whose time is up.

Whoever asked a proper review before is most likely the API server; the others are strangers. A newcomer always gets
in, because it may be the API server: the stranger that has been there longest goes for it, and only if there is none
the one that has been silent longest. So a crowd of silent connections keeps nobody out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from gpuslice.admission.server.connection import Connection

_SWEEP_SECONDS: Final = 0.5
#: Of bodies on their way or waiting for their answer, beyond what each connection may have anyway. It bounds time as
#: well: the worst review takes 35 ms for each MiB, and an API server waits three seconds.
MAX_HELD_BYTES: Final = 32 * 1024 * 1024
FREE_HELD_BYTES: Final = 64 * 1024


class Crowd:
    """The open connections, those that came first first."""

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._most = most
        self._loop = loop
        self._strangers: dict[Connection, None] = {}
        self._known: dict[Connection, None] = {}
        self._large: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def __iter__(self) -> Iterator[Connection]:
        yield from tuple(self._strangers)
        yield from tuple(self._known)

    @property
    def in_flight(self) -> int:
        """Requests that have begun and are not answered."""
        return sum(connection.in_request for connection in self)

    def join(self, connection: Connection) -> None:
        """A new connection; somebody goes for it if there are too many."""
        if len(self) >= self._most:
            self.make_room()
        self._strangers[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def make_room(self) -> None:
        """Ends the connection that will be missed least."""
        victim = next(iter(self._strangers), None)
        if victim is None:
            victim = min(
                (each for each in self._known if not each.in_request), key=lambda each: each.deadline, default=None
            )
        if victim is None:  # all are at work: the one that takes longest
            victim = min(self._known, key=lambda each: each.deadline)
        victim.drop("crowded_out")

    def recognize(self, connection: Connection) -> None:
        """It asked a proper review."""
        if self._strangers.pop(connection, self) is None:
            self._known[connection] = None

    def leave(self, connection: Connection) -> None:
        for group in (self._strangers, self._known, self._large):
            group.pop(connection, None)

    def hold(self, connection: Connection) -> None:
        """Its body is large. When all together are too large, the one that has been coming in longest goes: the API
        server is fast. Those that wait for their answer stay, even if they are too much by themselves.
        """
        self._large[connection] = None
        while sum(each.held_bytes for each in self._large) > MAX_HELD_BYTES:
            longest = next((each for each in self._large if each.incoming), None)
            if longest is None:
                break
            longest.give_way()

    def release(self, connection: Connection) -> None:
        self._large.pop(connection, None)

    def close_quiet(self, seconds: float) -> None:
        """Closes those who said nothing for so long."""
        for connection in self:
            connection.close_if_quiet(seconds)

    def drop_all(self, reason: str) -> None:
        for connection in self:
            connection.drop(reason)

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        for connection in self:
            if connection.deadline <= now:
                connection.expire()
        if len(self):
            self._timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
