"""A program that runs in place of this command: it gets our signals, and the caller gets its exit code.

Both are in one process group, so what the terminal sends (Ctrl-C, Ctrl-Z, a new window size) reaches the program by
itself; only signals that are sent to this process are passed on.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Mapping

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126

_PR_SET_CHILD_SUBREAPER: Final = 36
_FORWARDED: Final = frozenset(
    {
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGTSTP,
        signal.SIGCONT,
    }
)
#: Python ignores these from its start; a program expects them to be as they are everywhere else.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class ProgramError(GpusliceError):
    """Raised when a program cannot be started. `code` is what a shell would exit with."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def check(program: str) -> None:
    """Refuses a program that is not there, before anything is made for it."""
    if shutil.which(program) is not None:
        return
    if Path(program).is_dir():
        raise ProgramError(f"{program} cannot be run: it is a folder", NOT_EXECUTABLE)
    if (present := shutil.which(program, mode=os.F_OK)) is not None:
        raise ProgramError(f"{present} cannot be run: make it executable (chmod +x)", NOT_EXECUTABLE)
    raise ProgramError(f"the command {program!r} was not found: check its spelling and PATH", NOT_FOUND)


class Program:
    """The program, from its start to its end. Signals are held back while it exists, so none is lost in between."""

    def __init__(self, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        _adopt_orphans()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, the kernel would not say how the program ended
        # A signal that our parent ignores (nohup) stays ignored, here and in the program.
        forwarded = {number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
        self._signals: Final = forwarded | {signal.SIGCHLD}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)
        try:
            self.pid: Final = os.posix_spawnp(
                command[0], command, environment, setsigmask=before, setsigdef=_IGNORED_BY_PYTHON
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            raise ProgramError(f"{command[0]} cannot be run: {error.strerror}", code) from None

    def wait(self) -> int:
        """The program's exit code, or 128 and its signal's number. Signals are passed on until then."""
        while True:
            received = signal.sigwaitinfo(self._signals)
            if received.si_signo == signal.SIGCHLD:
                if (code := self._reap()) is not None:
                    return code
            else:
                self._pass_on(received)

    def _pass_on(self, received: signal.struct_siginfo) -> None:
        from_the_terminal = received.si_code > 0
        if not from_the_terminal:
            # It has not been waited for, so the number is still its own.
            os.kill(self.pid, received.si_signo)
        if received.si_signo == signal.SIGTSTP:
            _stop()

    def _reap(self) -> int | None:
        """Collects everything that ended: the program, and orphans that came to us."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                pid, status = ended
                if pid == self.pid:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
        return None


def _adopt_orphans() -> None:
    """Processes that lose their parent stay our descendants, by which the agent attributes them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _stop() -> None:
    """Stops as the signal would have, had it not been held back; until SIGCONT."""
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
