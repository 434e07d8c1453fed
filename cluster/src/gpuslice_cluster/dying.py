"""A process that does not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)


def with_this_process() -> Callable[[], None]:
    """What a child is to run first (`preexec_fn`): the kernel kills it when this process is gone, however that went."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # It may be gone already: then nobody would kill us.
        if os.getppid() != parent:
            os._exit(1)

    return prepare
