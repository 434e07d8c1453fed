"""Processes as the kernel tells of them: /proc and pidfds.

A process may end at any moment, and another may get its number. So code that acts on a process holds its pidfd, and
knows it by its start time.
"""

from __future__ import annotations

import ctypes
import os
import select
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator

_libc: Final = ctypes.CDLL(None, use_errno=True)
_PIDFD_SEND_SIGNAL: Final = 424
_MAX_COMMAND: Final = 256
_MAX_ENVIRONMENT: Final = 1 << 17
_MAX_MAPS: Final = 8 << 20
_CHUNK: Final = 1 << 16
_MAX_ANCESTORS: Final = 64


class ProcessIdentity(NamedTuple):
    """A process: its number, and when it started (in clock ticks since boot), because numbers are used again."""

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Status:
    """What /proc/PID/stat says, as far as it matters here."""

    parent: int
    start_time: int
    #: Where the program's parts are in its memory: another after exec. Empty if the agent may not know.
    layout: tuple[bytes, ...] = ()
    #: Its first thread has ended, and others may live on: what /proc says of it may be said of no process.
    ended: bool = False


def status(pid: int) -> Status | None:
    """None if there is no such process."""
    try:
        content = _read(f"/proc/{pid}/stat", 4096)
    except OSError:
        return None
    # The name in parentheses may itself contain anything; what follows the last one is numbers.
    fields = content[content.rfind(b")") + 2 :].split()
    if len(fields) < 49:
        return None
    layout = (*fields[23:26], *fields[42:49])
    ended = fields[0] in (b"Z", b"X")
    return Status(int(fields[1]), int(fields[19]), layout if int(layout[0]) > 1 else (), ended)


def identify(pid: int, pidfd: int) -> ProcessIdentity | None:
    """The process behind that pidfd. None if it has ended: then another may already have the number."""
    found = status(pid)
    return ProcessIdentity(pid, found.start_time) if found is not None and not has_ended(pidfd) else None


def open_pidfd(process: ProcessIdentity) -> int | None:
    """The process's pidfd, or None if it is gone and another process perhaps has the number."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if identify(process.pid, pidfd) == process:
        return pidfd
    os.close(pidfd)
    return None


@contextmanager
def closing(descriptor: int) -> Iterator[None]:
    """Closes a descriptor at the end."""
    try:
        yield
    finally:
        os.close(descriptor)


def has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def send_signal(pidfd: int, number: signal.Signals) -> bool:
    """False if the process has ended or may not be signalled."""
    return int(_libc.syscall(_PIDFD_SEND_SIGNAL, pidfd, int(number), None, 0)) == 0


def owner(pid: int) -> int | None:
    """The process's effective user, or None."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def command(pid: int) -> str:
    """The command line, for people. Reads the process's memory."""
    try:
        words = _read(f"/proc/{pid}/cmdline", 4 * _MAX_COMMAND).rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        return "?"
    text = words.decode(errors="replace") or name(pid)
    return text if len(text) <= _MAX_COMMAND else f"{text[: _MAX_COMMAND - 1]}…"


def name(pid: int) -> str:
    """The name that the kernel has of the process, in brackets."""
    try:
        return f"[{_read(f'/proc/{pid}/comm', 64).strip().decode(errors='replace')}]"
    except OSError:
        return "?"


def ancestors(pid: int) -> list[ProcessIdentity]:
    """The parent, its parent, and so on. One that is younger than its child is a number that was used again."""
    found: list[ProcessIdentity] = []
    child = status(pid)
    while child is not None and child.parent > 1 and len(found) < _MAX_ANCESTORS:
        parent = status(child.parent)
        if parent is None or parent.start_time > child.start_time:
            break
        found.append(ProcessIdentity(child.parent, parent.start_time))
        child = parent
    return found


def real_uid(pid: int) -> int | None:
    """The user who started the process, whatever user it acts as."""
    with suppress(OSError, ValueError, IndexError):
        return int(_read(f"/proc/{pid}/status", 1 << 16).partition(b"\nUid:")[2].split(None, 1)[0])
    return None


def may_be_ended_by(pid: int, uid: int) -> bool:
    """Whether that user could end the process by hand, as kill(2) has it: root, and its real or saved user."""
    if uid == 0:
        return True
    with suppress(OSError, ValueError, IndexError):
        real, _, saved = _read(f"/proc/{pid}/status", 1 << 16).partition(b"\nUid:")[2].split(None, 3)[:3]
        return uid in (int(real), int(saved))
    return False


def environment_variable(pid: int, name: str) -> str | None:
    """The variable as the process was started with it, if it is near the beginning. Reads the process's memory."""
    with suppress(OSError):
        content = b"\0" + _read(f"/proc/{pid}/environ", _MAX_ENVIRONMENT)
        wanted = f"\0{name}=".encode()
        if (start := content.find(wanted)) != -1:
            start += len(wanted)
            return content[start : max(start, content.find(b"\0", start))].decode(errors="replace")
    return None


def cgroups(pid: int) -> str | None:
    """/proc/PID/cgroup, or None. The kernel bounds its length, and reads nothing of the process for it."""
    try:
        return _read(f"/proc/{pid}/cgroup", 1 << 16).decode(errors="replace")
    except OSError:
        return None


def mounts(pid: int) -> str | None:
    """Which view of the file tree the process has, or None."""
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return None


def maps_inode(pid: int, inode: int) -> bool | None:
    """Whether the process has that file mapped; None if that cannot be told, as of one that is ending.

    Waits for the lock of the process's mappings, and reads no more than a few megabytes: a process with more of them
    keeps its slot.
    """
    wanted = f" {inode} ".encode()
    rest, length = b"", 0
    try:
        descriptor = os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
        with closing(descriptor):
            while length < _MAX_MAPS and (part := os.read(descriptor, _CHUNK)):
                length += len(part)
                head, newline, tail = (rest + part).rpartition(b"\n")
                if wanted in head and any(_inode_of(line) == inode for line in head.split(b"\n") if wanted in line):
                    return True
                rest = tail if newline else rest + part
    except OSError:
        return None
    return False if 0 < length < _MAX_MAPS else None


def _inode_of(line: bytes) -> int:
    """Of a mapping. What follows the inode is a path, in which anything may stand."""
    parts = line.split(None, 5)
    return int(parts[4]) if len(parts) > 4 else 0


def boot_id() -> str:
    """Which boot of the machine this is: start times and monotonic clocks mean something only within one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _read(path: str, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)
