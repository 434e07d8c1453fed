"""Receiving from tenants and hanging up on them, without ever waiting for what they sent.

A tenant can send descriptors over a unix socket. The last to close a TCP socket waits as long as its owner chose
(SO_LINGER), and a descriptor that was sent and not taken is closed when the connection is read or closed. Since
Linux 6.16 a socket can refuse descriptors. Under an older kernel nothing with descriptors in it is read, and threads
close connections: a tenant can keep some of them waiting, and the agent's loop goes on.
"""

from __future__ import annotations

import queue
import socket
import threading
from typing import Final

_SO_PASSRIGHTS: Final = 83
_THREADS: Final = 32
#: Connections that wait to be closed before no new ones are accepted.
MAX_BACKLOG: Final = 256


def refuse_descriptors(listener: socket.socket) -> bool:
    """Makes the kernel refuse descriptors on every connection to it. False if the kernel is too old."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


class HangUps:
    """Reads from connections and closes them."""

    def __init__(self, *, guarded: bool | None = None) -> None:
        """`guarded`: whether descriptors can come; None asks the kernel."""
        if guarded is None:
            with socket.socket(socket.AF_UNIX) as probe:
                guarded = not refuse_descriptors(probe)
        self._guarded = guarded
        self._connections: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._threads = 0

    @property
    def backlog(self) -> int:
        """How many connections wait to be closed."""
        return self._connections.qsize()

    def receive(self, connection: socket.socket, size: int) -> bytes:
        """What has come, at most so much; nothing if that is all, or if there are descriptors in it."""
        if self._guarded:
            content, _, flags, _ = connection.recvmsg(size, 0, socket.MSG_PEEK)
            if not content or flags & socket.MSG_CTRUNC:
                return b""
            size = len(content)  # what follows may have descriptors in it
        return connection.recv(size)

    def close(self, connection: socket.socket) -> None:
        """Closes the connection, now or soon."""
        if not self._guarded:
            connection.close()
            return
        self._connections.put(connection)
        if self._threads == 0 or (self._threads < _THREADS and self.backlog > 1):
            self._threads += 1
            threading.Thread(target=self._work, name="hang-ups", daemon=True).start()

    def _work(self) -> None:
        while True:
            self._connections.get().close()
