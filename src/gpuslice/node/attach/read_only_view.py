"""Descriptors that can only ever be read, also by root in a container.

A tenant that is root in its container can open /proc/self/fd/N of a descriptor it was given, for writing. Through a
read-only mount it cannot (EROFS). The agent makes such a mount of its sessions folder, which is nowhere in the file
tree and lives as long as a descriptor of it: no process can find it, remount it or leave it behind.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_OPEN_TREE: Final = 428
_MOUNT_SETATTR: Final = 442
_OPEN_TREE_CLONE: Final = 1
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_MOUNT_ATTR_RDONLY: Final = 1

_libc: Final = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    """struct mount_attr."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class ReadOnlyView:
    """A folder, seen through a read-only mount where that is possible."""

    def __init__(self, folder: Path) -> None:
        #: Why tenants of the agent's own user could write after all; empty if they cannot.
        self.weakness = ""
        try:
            self._descriptor = _detached_mount(folder)
        except OSError as error:
            self.weakness = f"no read-only mount: {error.strerror}"
            self._descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, name: str) -> int:
        """A descriptor of the file, for reading. Never waits, whatever a tenant did to a descriptor it had of it."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(name, flags, dir_fd=self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _detached_mount(folder: Path) -> int:
    descriptor = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(folder), ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC))
    try:
        attributes = _MountAttributes(attr_set=_MOUNT_ATTR_RDONLY)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        _call(_MOUNT_SETATTR, descriptor, b"", ctypes.c_uint(_AT_EMPTY_PATH), ctypes.byref(attributes), size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result == -1:
        reason = ctypes.get_errno()
        raise OSError(reason, os.strerror(reason))
    return result
