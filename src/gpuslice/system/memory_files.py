"""Files that are in memory alone, for libraries that take nothing but a path."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """A path to those bytes while it is entered. Nothing is written to a disk: it may be a key."""
    descriptor = os.memfd_create("gpuslice", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
