"""Unix sockets: listening at a path, and who is at the other end of a connection."""

from __future__ import annotations

import errno
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuslice.model.errors import GpusliceError
from gpuslice.system import processes
from gpuslice.system.hang_ups import refuse_descriptors

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice.system.processes import ProcessIdentity

_SO_PEERPIDFD: Final = 77
_CREDENTIALS: Final = struct.Struct("=iII")
_LONGEST_PATH: Final = 107
_BACKLOG: Final = 4096


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel knows it."""

    pid: int
    uid: int
    gid: int


def listen(path: Path) -> socket.socket:
    """A socket at that path that every user may connect to. It replaces what a dead agent left there in one step."""
    if len(os.fsencode(path)) > _LONGEST_PATH - len(".new"):
        raise GpusliceError(f"{path} is too long for a socket's path: give a shorter folder with --state")
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        refuse_descriptors(listener)
        listener.bind(str(new))
        new.chmod(0o666)
        listener.listen(_BACKLOG)
        new.rename(path)
    except BaseException:
        listener.close()
        raise
    return listener


def give_second_name(path: Path, second: Path) -> None:
    """The same socket at another path, in one step."""
    new = second.with_name(f"{second.name}.new")
    new.unlink(missing_ok=True)
    new.hardlink_to(path)
    new.rename(second)


def peer_of(connection: socket.socket) -> Peer:
    return Peer(*_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)))


def identify_peer(connection: socket.socket, peer: Peer, connected_ticks: int) -> tuple[ProcessIdentity, int] | None:
    """The peer and its pidfd, or None if it has ended."""
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        certain = True
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            return None  # the peer is gone
        # Linux before 6.5. By its number the peer may be found, or another that has the number now: that one was
        # started after the connection was there.
        try:
            pidfd = os.pidfd_open(peer.pid)
        except OSError:
            return None
        certain = False
    identity = processes.identify(peer.pid, pidfd)
    if identity is None or (not certain and identity.start_time > connected_ticks):
        os.close(pidfd)
        return None
    return identity, pidfd
