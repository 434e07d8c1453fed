"""Has the kernel kill a child process when its parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)


def kill_child() -> Callable[[], None]:
    """What a child runs first (`preexec_fn`): the kernel kills the child when this process ends, however it ends."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may be gone already: then the kernel would not kill us.
        if os.getppid() != parent:
            os._exit(1)

    return prepare
