"""What a tenant's pods do to a port that they reach: from addresses of their own, until they are told to stop."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests.webhook.support import Client

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

#: As many open ones as an attacker keeps.
_KEPT = 100
_ATTACKERS = 4
#: Ends a connection without a trace, so that the attacker does not run out of ports.
_RESET = struct.pack("ii", 1, 0)


@contextmanager
def connects(port: int, sources: Sequence[str], hello: bytes = b"") -> Iterator[Callable[[], int]]:
    """Connections that say nothing but that, one after another; asked, it tells how many there were."""
    over = threading.Event()
    counts = [0] * min(_ATTACKERS, len(sources))

    def attack(number: int) -> None:
        own = itertools.cycle(sources[number :: len(counts)])
        kept: list[socket.socket] = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                kept.append(_connect(port, next(own), hello))
                counts[number] += 1
            if len(kept) > _KEPT:
                kept.pop(0).close()
        for each in kept:
            each.close()

    threads = [threading.Thread(target=attack, args=(number,), daemon=True) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        yield lambda: sum(counts)
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextmanager
def held(
    count: int, port: int, context: ssl.SSLContext | None, source: str, use: Callable[[Client], object]
) -> Iterator[list[Client]]:
    """Open connections, each of which was used."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            client = stack.enter_context(Client(port, context, source))
            use(client)
            made.append(client)
        yield made


def _connect(port: int, source: str, hello: bytes) -> socket.socket:
    made = socket.socket()
    try:
        made.settimeout(5)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        made.bind((source, 0))
        made.connect(("127.0.0.1", port))
        if hello:
            made.sendall(hello)
    except OSError:
        made.close()
        raise
    return made
