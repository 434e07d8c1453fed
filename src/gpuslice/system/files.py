"""Files that are written whole or not at all, so that no reader ever sees half of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replaces the file in one step, once the content is on the disk."""
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    synchronize(path.parent)


def remove_unfinished(folder: Path, names: str = "*") -> None:
    """Removes what `write_durably` left when its process was killed. No other process may be writing there."""
    for path in folder.glob(f".{names}.new"):
        path.unlink(missing_ok=True)


def synchronize(folder: Path) -> None:
    """Puts the folder's names on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
