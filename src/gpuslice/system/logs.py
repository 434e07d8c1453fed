"""The log of every process: one line per event with named values, as JSON for machines or for people on a console.

A line is written at once when there was none a moment ago. Under load there are thousands a second, and a write for
each would cost as much as the work that it tells of, so lines that follow closely are written together.
A reader that does not read, or is gone, stops nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import select
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.system import timestamps

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_FLUSH_SECONDS: Final = 0.05
#: More than that in one moment is written at once.
_MOST_BYTES: Final = 64 * 1024
#: What a pipe that is not read makes us hold. Lines beyond it are lost; the process goes on.
_MOST_HELD_BYTES: Final = 1024 * 1024
_LONGEST_TEXT: Final = 4096

_encode: Final = msgspec.json.Encoder(enc_hook=repr).encode


def configure(form: str, *, debug: bool) -> None:
    """Logs to standard error, in the form `json` or `console`."""
    if form == "json":
        # structlog loads rich if it finds it, for consoles: a tenth of the memory of a webhook that has none.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # as the import system has it
    import structlog

    writer = Writer(2)
    atexit.register(writer.flush)
    structlog.configure(
        processors=[render_json] if form == "json" else _for_people(structlog),
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=lambda *_: writer,
        cache_logger_on_first_use=True,
    )


def _for_people(structlog: Any) -> list[Any]:  # noqa: ANN401 - a module
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0),
    ]


def render_json(_logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    """All in one step: structlog's own, one after another, take as long as a review."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exception()
    line: dict[str, Any] = {
        "timestamp": timestamps.micro_time(),
        "level": "error" if method == "exception" else method,
        "event": event.pop("event"),
    }
    for name, value in event.items():
        line[name] = value if not isinstance(value, str) or len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT]
    if isinstance(error, BaseException):
        line["exception"] = "".join(traceback.format_exception(error))[-_LONGEST_TEXT:]
    try:
        return _encode(line).decode()
    except (ValueError, TypeError, OverflowError):  # text that is no Unicode, numbers without measure
        return json.dumps(line, default=repr)


class Writer:
    """Gathers lines for a descriptor. Threads that log beside the event loop write at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._bytes = 0
        self._written = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        # Reentrant: a signal's handler or a destructor may log in the midst of a line.
        self._lock = threading.RLock()

    def msg(self, line: str) -> None:
        encoded = f"{line}\n".encode(errors="backslashreplace")
        with self._lock:
            if self._bytes > _MOST_HELD_BYTES:
                return
            self._lines.append(encoded)
            self._bytes += len(encoded)
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                self.flush()
                return
            if self._bytes > _MOST_BYTES or time.monotonic() - self._written > _FLUSH_SECONDS:
                self.flush()
            if self._lines and self._timer is None:
                self._timer = loop.call_later(_FLUSH_SECONDS, self._flush_later)

    debug = info = warning = error = critical = exception = msg

    def flush(self) -> None:
        """Writes what the reader has room for."""
        with self._lock:
            lines, self._lines = self._lines, []
            rest = b"".join(lines)
            try:
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                # A pipe with room takes a page without making us wait.
                while rest and poll.poll(0):
                    rest = rest[os.write(self._descriptor, rest[: select.PIPE_BUF]) :]
            except (OSError, ValueError):
                rest = b""
            # A handler of a signal may have logged meanwhile.
            self._lines = [rest, *self._lines] if rest else self._lines
            self._bytes = sum(map(len, self._lines))
            self._written = time.monotonic()

    def _flush_later(self) -> None:
        self._timer = None
        self.flush()
        if self._lines:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush_later)
