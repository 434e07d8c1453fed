"""The `control` file, mapped: the agent's words to the tenants."""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuslice.node.errors import BrokenSessionError
from gpuslice.node.sessions import page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: No user has such a number: neither of the machine, nor of a container with a user namespace of its own.
_OWNERS: Final = range(0xE0000000, 0xFFFFFF00)


class LeasedControlError(BrokenSessionError):
    """A tenant holds a lease on the page, and the agent cannot write it as long as it does."""


class ControlPage:
    """A session's control page. Only the agent can write it, so nothing here is read as a stranger's word.

    It is a file and not a sealed memfd as the cells are: F_SEAL_FUTURE_WRITE, which would keep tenants from writing,
    would keep the next agent from it as well.
    """

    def __init__(self, path: Path) -> None:
        descriptor = _open(path)
        try:
            if os.fstat(descriptor).st_size != page.CONTROL_BYTES:
                raise BrokenSessionError(f"{path.name} is not one page long")
            self._map = mmap.mmap(descriptor, page.CONTROL_BYTES)
            _give_away(descriptor)
        finally:
            os.close(descriptor)
        self.values = page.Control.from_buffer(self._map)
        #: The heartbeat alone: it is written to every page several times a second.
        self.heartbeat = ctypes.c_uint64.from_buffer(self._map, page.Control.heartbeat_ns.offset)

    def check(self, session: str, gpu_uuids: Sequence[str]) -> None:
        """Raises BrokenSessionError unless this is the page of that session on those GPUs."""
        values = self.values
        if (values.magic, values.version) != (page.MAGIC, page.VERSION):
            raise BrokenSessionError("control is not a page of this version")
        if values.session != session.encode() or values.slots_high > page.SLOTS:
            raise BrokenSessionError("control is not this session's page")
        found = [bytes(values.gpus[index].uuid) for index in range(min(values.gpu_count, page.MAX_GPUS))]
        if found != [page.uuid_bytes(uuid) for uuid in gpu_uuids]:
            raise BrokenSessionError("control names other GPUs than session.json")

    def close(self) -> None:
        """Lets go of the page. It is unmapped when the last reference to it goes, and not while a thread reads it."""
        del self.values, self.heartbeat, self._map


def _open(path: Path) -> int:
    """Tenants have had descriptors of it. While no agent runs, one of its owner can take a lease on it (fcntl(2)).

    An open waits 45 seconds for the lease; this one fails instead, and the session gets another page.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except BlockingIOError:
        raise LeasedControlError("a tenant holds a lease on control") from None


def _give_away(descriptor: int) -> None:
    """Makes the file an unused user's: a container's root owns what root owns, and an owner can take leases.

    It can still become that user (CAP_SETUID), so this makes leases harder and no more. Root needs no ownership here.
    """
    if os.geteuid() == 0 and os.fstat(descriptor).st_uid == 0:
        with suppress(OSError):  # in a user namespace there may be no such user
            os.fchown(descriptor, secrets.choice(_OWNERS), -1)


def write_control(path: Path, values: page.Control) -> None:
    """Makes a control file. All of it is allocated, so that a full disk is an error here and not a signal later."""
    content = bytes(values).ljust(page.CONTROL_BYTES, b"\0")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, page.CONTROL_BYTES)
        os.write(descriptor, content)
        _give_away(descriptor)
    finally:
        os.close(descriptor)
