"""Whether what is at a path is an agent of this user or of root: no other may learn the agent's token.

In a folder that every user can write, such as /tmp, any user can make what looks like another's agent.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from typing import TYPE_CHECKING, Final

from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from pathlib import Path

_CREDENTIALS: Final = struct.Struct("=iII")
_WRITABLE_BY_OTHERS: Final = 0o022


class UntrustedAgentError(GpusliceError):
    """Raised before anything is sent to an agent that may be another user's."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(
            f"{path} {problem}: the agent there is not told the token; "
            "remove it, or name the folder of your agent with --state or GPUSLICE_STATE"
        )


def check_folder(folder: Path) -> None:
    """The folder, and what leads to it if it is a link, must be this user's or root's. There may be none."""
    try:
        found = folder.lstat()
        _check_owner(folder, found.st_uid)
        found = folder.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UntrustedAgentError(folder, f"cannot be examined ({error.strerror})") from None
    _check_owner(folder, found.st_uid)
    if stat.S_ISDIR(found.st_mode) and found.st_mode & _WRITABLE_BY_OTHERS:
        raise UntrustedAgentError(folder, "can be written by other users")


def check_socket(path: Path) -> None:
    """The same, for the socket in the folder. Any user may connect to it, so its mode says nothing."""
    check_folder(path.parent)
    try:
        owner = path.lstat().st_uid
    except OSError:
        return  # to connect says what is wrong with it
    _check_owner(path, owner)


def check_listener(path: Path, connection: socket.socket) -> None:
    """The process that listens must be this user's or root's, whatever was at the path when it was looked at."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    if not _is_trusted(uid):
        raise UntrustedAgentError(path, f"is served by uid {uid}, which is neither yours nor root")


def _check_owner(path: Path, uid: int) -> None:
    if not _is_trusted(uid):
        raise UntrustedAgentError(path, f"belongs to uid {uid}, which is neither yours nor root")


def _is_trusted(uid: int) -> bool:
    return uid in (0, os.geteuid())
