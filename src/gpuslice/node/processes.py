"""Processes as the kernel tells of them: /proc and pidfds.

A process may end at any moment, and another may get its number. Whoever acts on a process holds its pidfd, and knows it
by its start time.
"""

from __future__ import annotations

import ctypes
import functools
import os
import select
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice.node.attached import Identity

if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator

_libc: Final = ctypes.CDLL(None, use_errno=True)
_PIDFD_SEND_SIGNAL: Final = 424
_MAX_COMMAND: Final = 256
_MAX_ENVIRONMENT: Final = 1 << 20
_MAX_ANCESTORS: Final = 64


@dataclass(frozen=True, slots=True)
class Status:
    """What /proc/PID/stat says, as far as it matters here."""

    parent: int
    start_time: int


def status(pid: int) -> Status | None:
    """None if there is no such process."""
    try:
        content = _read(f"/proc/{pid}/stat", 4096)
    except OSError:
        return None
    # The name in parentheses may itself contain anything; what follows the last one is numbers.
    fields = content[content.rfind(b")") + 2 :].split()
    return Status(parent=int(fields[1]), start_time=int(fields[19])) if len(fields) > 19 else None


def identify(pid: int, pidfd: int) -> Identity | None:
    """Who holds that pidfd. None if it has ended: then the number may already be somebody else's."""
    found = status(pid)
    return Identity(pid, found.start_time) if found is not None and not has_ended(pidfd) else None


def open_pidfd(process: Identity) -> int | None:
    """The process's pidfd, or None if it is gone and the number perhaps somebody else's."""
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
    """The command line, for people."""
    try:
        words = _read(f"/proc/{pid}/cmdline", 4 * _MAX_COMMAND).rstrip(b"\0").replace(b"\0", b" ")
        words = words or b"[" + _read(f"/proc/{pid}/comm", 64).strip() + b"]"
    except OSError:
        return "?"
    text = words.decode(errors="replace")
    return text if len(text) <= _MAX_COMMAND else f"{text[: _MAX_COMMAND - 1]}…"


def ancestors(pid: int) -> list[int]:
    """The parent, its parent, and so on."""
    found: list[int] = []
    while len(found) < _MAX_ANCESTORS and (current := status(pid)) is not None and current.parent > 1:
        pid = current.parent
        found.append(pid)
    return found


def environment_variable(pid: int, name: str) -> str | None:
    """The variable as the process was started with it."""
    with suppress(OSError):
        for entry in _read(f"/proc/{pid}/environ", _MAX_ENVIRONMENT).split(b"\0"):
            key, _, value = entry.partition(b"=")
            if key == name.encode():
                return value.decode(errors="replace")
    return None


def is_in_pod(pid: int, pod_uid: str) -> bool:
    """Whether the process is in a container of the pod: the kubelet names the cgroup after it, with - or with _."""
    try:
        cgroup = _read(f"/proc/{pid}/cgroup", 1 << 16)
    except OSError:
        return False
    return any(f"pod{name}".encode() in cgroup for name in (pod_uid, pod_uid.replace("-", "_")))


@dataclass(frozen=True, slots=True)
class Container:
    """What tells one container from another: its cgroups and its view of the file tree."""

    cgroup: bytes
    mounts: str


def container(pid: int) -> Container | None:
    """The container that a process is in; None if its cgroups or its mounts are the machine's."""
    try:
        cgroup = _read(f"/proc/{pid}/cgroup", 1 << 16)
        mounts = str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return None
    in_root = all(line.endswith(b":/") for line in cgroup.splitlines())
    return None if in_root or mounts == _machine_mounts() else Container(cgroup, mounts)


@functools.cache
def _machine_mounts() -> str:
    try:
        return str(Path("/proc/1/ns/mnt").readlink())
    except OSError:
        return ""


def maps_inode(pid: int, inode: int) -> bool | None:
    """Whether the process has that file mapped; None if that cannot be told, as of one that is ending."""
    wanted = str(inode).encode()
    try:
        with Path(f"/proc/{pid}/maps").open("rb") as file:
            line = b""
            for line in file:
                parts = line.split(None, 5)
                if len(parts) > 4 and parts[4] == wanted:
                    return True
    except OSError:
        return None
    return False if line else None


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
