"""Standard input, output and error as commands use them: closed, full or gone, they are an error and no traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NAME: Final = "standard output"


def prepare() -> None:
    """An error of standard output says that it is one, and the streams are there, whatever this process was given."""
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - as long as the process lives
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process lives
    if sys.stdout is None:
        sys.stdout = _Closed()
    else:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(sys.stdout.fileno(), "w", closefd=False)),
            encoding=sys.stdout.encoding,
            errors="backslashreplace",  # what the terminal cannot show is shown by its number
            line_buffering=sys.stdout.isatty(),
        )


def give_up() -> None:
    """Keeps Python from trying, and complaining, once more at exit."""
    sys.stdout = None


class _Output(io.FileIO):
    """The descriptor. A write that fails names it."""

    def write(self, content: ReadableBuffer, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            raise OSError(error.errno, error.strerror, _NAME) from None


class _Closed(io.StringIO):
    """In place of a descriptor that was closed before the start. Nothing is printed there in silence."""

    def write(self, _text: str, /) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), _NAME)
