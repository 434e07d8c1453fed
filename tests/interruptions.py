"""A run of the tests that is interrupted still tears down what its tests have.

SIGTERM is taken as SIGINT is: pytest ends the test and its fixtures. Workers take only the first: one that comes when
they tear down, such as from a terminal, which tells all of its processes, would leave that half done.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

_process = os.getpid()


def prepare() -> None:
    """For this process, pytest itself or a worker."""
    # A shell that starts the tests in the background may ignore these signals, and programs that we start would
    # inherit that; some tests are about what a program does with them. Of a handler, a new program inherits nothing.
    for number in (signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def pass_on(workers: Iterable[int]) -> None:
    """Interrupts the workers, too, if pytest was interrupted alone, as by `kill`."""
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGINT)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if os.getpid() != _process:  # a child of a test
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    if "PYTEST_XDIST_WORKER" in os.environ:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: None)
    raise KeyboardInterrupt
