"""Connections by the address that they come from, and which of them is dropped when there are too many.

One address with many connections must not displace another's: so the address that has most loses first, and of equals
the one that has had so many for longest. Each step takes the same time however many addresses there are, because a
flood has many.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.http.connection import Connection

#: A machine has so much of an IPv6 address to itself that it could come from another address each time.
_NETWORK_BYTES: Final = 8


def source_of(peer: tuple[object, ...]) -> str:
    """What all connections of one machine have in common, of a socket's address."""
    host = str(peer[0])
    if "." in host:  # IPv4, as it is or within IPv6
        return host.rpartition(":")[2]
    try:
        network = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:_NETWORK_BYTES]
    except OSError:
        return host
    return f"{socket.inet_ntop(socket.AF_INET6, network.ljust(16, bytes(1)))}/64"


class _Source:
    """The connections of one address, by what they have shown, in the order in which they came."""

    __slots__ = ("asked", "heard", "silent")

    def __init__(self) -> None:
        self.silent: dict[Connection, None] = {}
        self.heard: dict[Connection, None] = {}
        #: Connections that have asked for a proper review.
        self.asked: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self.silent) + len(self.heard) + len(self.asked)

    def least_missed(self) -> Connection:
        """A silent connection first: an honest client speaks at once, and one that has asked before will ask again."""
        for group in (self.silent, self.heard):
            if group:
                return next(iter(group))
        idle = (each for each in self.asked if not each.in_request)
        # If all are in a request: the connection whose request takes longest.
        return min(idle, key=_deadline, default=None) or min(self.asked, key=_deadline)


class Sources:
    """All addresses with connections."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        #: The addresses that have one connection, two, and so on.
        self._by_count: list[dict[str, None]] = [{}]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Connection]:
        for source in tuple(self._sources.values()):
            yield from (*source.silent, *source.heard, *source.asked)

    def add(self, connection: Connection) -> None:
        source = self._sources.setdefault(connection.source, _Source())
        source.silent[connection] = None
        self._count += 1
        self._recount(connection.source, len(source) - 1, len(source))

    def heard(self, connection: Connection) -> None:
        """Notes that the connection has sent something."""
        source = self._sources.get(connection.source)
        if source is not None and source.silent.pop(connection, self) is None:
            source.heard[connection] = None

    def asked(self, connection: Connection) -> None:
        """Notes that the connection has asked for a proper review."""
        source = self._sources.get(connection.source)
        if source is not None and source.heard.pop(connection, self) is None:
            source.asked[connection] = None

    def remove(self, connection: Connection) -> bool:
        """Returns False if the connection is not here."""
        source = self._sources.get(connection.source)
        if source is None or not any(
            group.pop(connection, self) is None for group in (source.silent, source.heard, source.asked)
        ):
            return False
        self._count -= 1
        self._recount(connection.source, len(source) + 1, len(source))
        if not len(source):
            del self._sources[connection.source]
        return True

    def take(self, address: str) -> list[Connection]:
        """Removes and returns the connections of one address."""
        source = self._sources.get(address)
        found = [] if source is None else [*source.silent, *source.heard, *source.asked]
        for each in found:
            self.remove(each)
        return found

    def least_missed(self) -> Connection | None:
        """Of the address that has most."""
        if not self._count:
            return None
        return self._sources[next(iter(self._by_count[-1]))].least_missed()

    def _recount(self, address: str, before: int, now: int) -> None:
        if before:
            del self._by_count[before][address]
        if now == len(self._by_count):
            self._by_count.append({})
        if now:
            self._by_count[now][address] = None
        while len(self._by_count) > 1 and not self._by_count[-1]:
            self._by_count.pop()


def _deadline(connection: Connection) -> float:
    return connection.deadline
