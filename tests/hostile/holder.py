"""A tenant that uses what it was given against the agent: leases, locks, decoys, and descriptors sent to it.

    holder.py SOCKET SESSION TOKEN

It attaches as tests/node/tenant.py does, understands its commands, and these:

    lease               a lease on `control`, again and again, until it is granted
    lease-cells         lets go of the cells but for a descriptor to read, and takes a lease on that
    lock                locks of every kind, on all it has
    hide                closes the cells' descriptor, and keeps them mapped
    bury COUNT          moves it behind so many others that look like it
    current             whether its cells are those that count
    linger SECONDS      sends a socket whose close takes so long, in place of an attach request
    half                a request that never ends
    watch               asks to be asked before any open of `control` (fanotify), then to be told of each
    multiply COUNT      so many children, each of which attaches if it can, and stays
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
import time
from pathlib import Path

from gpuslice.node.sessions import cells, page
from tests.node.tenant import Tenant, serve

_libc = ctypes.CDLL(None, use_errno=True)
_FAN_CLASS_CONTENT = 4
_FAN_REPORT_FID = 0x200
_FAN_MARK_ADD = 1
_FAN_OPEN = 0x20
_PR_SET_PDEATHSIG = 1
_OFD_SETLK = 37
_LOCK = struct.Struct("=hhqqi4x")
_LIKELY = 300  # where the agent looks first


class Holder(Tenant):
    """One hostile process."""

    def misbehave(self, command: str, numbers: list[int]) -> object:
        held = {"lease": self._lease_control, "lease-cells": self._lease_cells, "lock": self._lock}
        if command in held:
            return held[command]()
        match command:
            case "hide":
                _close_cells()
            case "bury":
                self._bury(numbers[0])
            case "current":
                mapped = os.fstat(self.cells_descriptor).st_ino
                return page.Control.from_buffer_copy(self.control).cells_inode == mapped
            case "linger":
                return self._linger(numbers[0])
            case "half":
                self.half = [*getattr(self, "half", []), socket.socket(socket.AF_UNIX)]
                self.half[-1].connect(self.path)
                self.half[-1].sendall(page.ATTACH_MAGIC.to_bytes(8, sys.byteorder))
            case "watch":
                return self._watch()
            case "multiply":
                self._multiply(numbers[0])
            case _:
                return super().misbehave(command, numbers)
        return ""

    def _lease_control(self) -> str:
        return _lease(self.control_descriptor)

    def _lease_cells(self) -> str:
        kept = os.open(f"/proc/self/fd/{self.cells_descriptor}", os.O_RDONLY)
        self.cells.close()
        os.close(self.cells_descriptor)
        return _lease(kept)

    def _lock(self) -> str:
        whole = _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        for descriptor in (self.control_descriptor, self.cells_descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            fcntl.fcntl(descriptor, _OFD_SETLK, whole)
            fcntl.lockf(descriptor, fcntl.LOCK_SH)
        return ""

    def _bury(self, count: int) -> None:
        """Where the agent looks there are memfds of the same name and length, and behind them the cells."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        name = cells.LINK.removeprefix("/memfd:").removesuffix(" (deleted)")
        decoy = os.memfd_create(name)
        os.ftruncate(decoy, len(self.cells))
        self.cells_descriptor = fcntl.fcntl(self.cells_descriptor, fcntl.F_DUPFD_CLOEXEC, _LIKELY + count + 1)
        for number in range(_LIKELY, _LIKELY + count):
            os.dup2(decoy, number)
        _close_cells()

    def _linger(self, seconds: int) -> str:
        """A TCP connection with data that its peer never takes, of which the agent would have the last descriptor."""
        listener = socket.create_server(("127.0.0.1", 0))
        sent = socket.create_connection(listener.getsockname())
        self.peer = listener.accept()
        sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
        sent.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                sent.send(bytes(65536))
        self.second = socket.socket(socket.AF_UNIX)
        self.second.connect(self.path)
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sent.fileno()]))
            self.second.sendmsg([b"x"], [rights])
        except PermissionError:
            self.kept_open = sent  # closing it would wait here
            return "refused"
        sent.close()
        return "sent"

    def _watch(self) -> str:
        """The answer to being asked, and how many of the calls for being told succeeded."""
        asked = _libc.fanotify_init(_FAN_CLASS_CONTENT, os.O_RDONLY)
        refusal = os.strerror(ctypes.get_errno()) if asked == -1 else "allowed"
        self.told = _libc.fanotify_init(_FAN_REPORT_FID, os.O_RDONLY)
        path = f"/proc/self/fd/{self.control_descriptor}".encode()
        marked = _libc.fanotify_mark(self.told, _FAN_MARK_ADD, ctypes.c_uint64(_FAN_OPEN), -1, path)
        return f"{refusal}, {int(self.told != -1) + int(marked == 0)}"

    def _multiply(self, count: int) -> None:
        for _ in range(count):
            if os.fork() == 0:
                _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    self.attach()
                while True:
                    signal.pause()


def _close_cells() -> None:
    """All low descriptors of cells: Python's mmap has one of its own."""
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            if str(Path(f"/proc/self/fd/{number}").readlink()) == cells.LINK:
                os.close(number)


def _lease(descriptor: int) -> str:
    """Granted as soon as no other process has it open for writing."""
    for _ in range(1000):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            fcntl.fcntl(descriptor, fcntl.F_SETSIG, 0)
            return "leased"
    return "not granted"


if __name__ == "__main__":
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # how a lease is asked back
    serve(Holder)
