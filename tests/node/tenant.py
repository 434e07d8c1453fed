"""A process of a session without CUDA: attaches as the interposer does, and does to its cells what it is told.

    tenant.py SOCKET SESSION TOKEN [UID]

It prints the status and slot it got, then `ok …` after each command that it reads:

    charge GPU BYTES | free GPU BYTES | deny GPU | peak GPU BYTES     what an allocator does, in whole units
    keep GPU BYTES                                                    frees, and keeps it as spare
    attach | observe | close | exec                                   what a process does
    garbage | resize BYTES | rewrite                                  what it should not do
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import sys
from typing import TYPE_CHECKING

from gpuslice.node.sessions import page

if TYPE_CHECKING:
    from collections.abc import Callable

WORD = struct.Struct("=Q")


class Tenant:
    """One process's place in a session."""

    def __init__(self, path: str, session: str, token: str) -> None:
        self.path, self.session, self.token = path, session, token

    def attach(self, flags: int = 0) -> page.Attached:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.connect(self.path)
        request = page.Attach(
            magic=page.ATTACH_MAGIC,
            version=page.VERSION,
            flags=flags,
            session=self.session.encode(),
            token=self.token.encode(),
        )
        self.connection.sendall(bytes(request))
        answer, descriptors, _, _ = socket.recv_fds(self.connection, page.ATTACHED_BYTES, 2)
        attached = page.Attached.from_buffer_copy(answer)
        if attached.status == page.ATTACH_OK:
            self.slot = attached.slot
            self.control_descriptor, self.cells_descriptor = descriptors
            self.control = mmap.mmap(self.control_descriptor, 0, prot=mmap.PROT_READ)
            access = mmap.PROT_READ if flags & page.ATTACH_OBSERVER else mmap.PROT_READ | mmap.PROT_WRITE
            self.cells = mmap.mmap(self.cells_descriptor, 0, prot=access)
        return attached

    def _add(self, gpu: int, field: str, amount: int) -> None:
        offset = page.cell_offset(gpu, self.slot) + getattr(page.Cell, field).offset
        WORD.pack_into(self.cells, offset, WORD.unpack_from(self.cells, offset)[0] + amount & 2**64 - 1)

    def do(self, command: str, *arguments: str) -> object:
        numbers = [int(argument) for argument in arguments]
        match command:
            case "charge":
                self._add(numbers[0], "charged", _units(numbers[1]))
                self._add(numbers[0], "granted", 1)
            case "free":
                self._add(numbers[0], "charged", -_units(numbers[1]))
            case "keep":
                self._add(numbers[0], "charged", _units(numbers[1]) << page.SPARE_SHIFT)
            case "deny":
                self._add(numbers[0], "denied", 1)
            case "peak":
                self._add(numbers[0], "peak", numbers[1])
            case "cell":
                return page.SLOT_WORDS.unpack_from(self.cells, page.cell_offset(numbers[0], self.slot))
            case "control":
                control = page.Control.from_buffer_copy(self.control)
                gpu = control.gpus[0]
                return control.state, gpu.limit_bytes, control.slots_high, control.heartbeat_ns, gpu.epoch
            case _:
                return self.misbehave(command, numbers)
        return ""

    def misbehave(self, command: str, numbers: list[int]) -> object:
        match command:
            case "attach":
                return self.attach().slot
            case "observe":
                other = Tenant(self.path, self.session, self.token)
                return other.attach(page.ATTACH_OBSERVER).slot
            case "close":
                self.connection.close()
            case "exec":
                os.execvp("sleep", ["sleep", "600"])  # noqa: S606
            case "garbage":
                self.cells[:] = b"\xff" * len(self.cells)
            case "resize":
                return self._resize(numbers[0])
            case "rewrite":
                return self._rewrite()
            case _:
                raise ValueError(command)
        return ""

    def _resize(self, size: int) -> str:
        """Tries every way to change the length of the cells, and to undo their seals."""
        again = os.open(f"/proc/self/fd/{self.cells_descriptor}", os.O_RDWR)
        seals = fcntl.F_SEAL_WRITE
        return _problems(
            lambda: os.ftruncate(self.cells_descriptor, size),
            lambda: os.ftruncate(again, size),
            lambda: os.posix_fallocate(again, 0, max(size, len(self.cells) + 1)),
            lambda: os.pwrite(again, b"x", len(self.cells)),
            lambda: fcntl.fcntl(again, fcntl.F_ADD_SEALS, seals),
        )

    def _rewrite(self) -> str:
        """Tries every way to write the limit."""
        problems = []
        for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC):
            try:
                os.open(f"/proc/self/fd/{self.control_descriptor}", flags)
                problems.append("opened")
            except OSError as error:
                problems.append(error.strerror or "")
        attempts = (
            lambda: mmap.mmap(self.control_descriptor, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE),
            lambda: os.pwrite(self.control_descriptor, b"x", 0),
            lambda: os.ftruncate(self.control_descriptor, 0),
            lambda: os.fchmod(self.control_descriptor, 0o666),
        )
        return ", ".join([*problems, _problems(*attempts)])


def _problems(*attempts: Callable[[], object]) -> str:
    """What the kernel says to each, or `done`."""
    said = []
    for attempt in attempts:
        try:
            attempt()
            said.append("done")
        except OSError as error:
            said.append(error.strerror or "")
    return ", ".join(said)


def _units(size: int) -> int:
    units, rest = divmod(size, page.UNIT)
    assert rest == 0, f"{size} bytes are not whole units"
    return units


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def serve(kind: type[Tenant]) -> None:
    """Attaches, and does what it reads."""
    path, session, token, *user = sys.argv[1:]
    if user:
        os.setgid(int(user[0]))
        os.setuid(int(user[0]))
    tenant = kind(path, session, token)
    answer = tenant.attach()
    with contextlib.suppress(BrokenPipeError):
        _say(answer.status, answer.slot, answer.message.decode())
        for line in sys.stdin:
            _say("ok", tenant.do(*line.split()))


if __name__ == "__main__":
    serve(Tenant)
