"""The webhook's log: one line per event, as JSON or for people.

Under load there are thousands of lines a second, and a write for each would cost as much as the review that it
tells of. So lines are gathered for a moment and written together.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import select
import sys
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_FLUSH_SECONDS: Final = 0.05
#: More than that in one moment is written at once.
_MOST_BYTES: Final = 64 * 1024
#: What a pipe that nobody empties makes us hold. Lines beyond it are lost; the webhook goes on.
_MOST_HELD_BYTES: Final = 1024 * 1024
_LONGEST_TEXT: Final = 4096

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


def configure(form: str, *, debug: bool) -> None:
    """Logs to standard error."""
    if form == "json":
        # structlog loads rich if it finds it, for consoles: a tenth of the memory of a webhook that has none.
        sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # as the import system has it
    import structlog

    writer = _Writer()
    atexit.register(writer.flush)
    structlog.configure(
        processors=[_render_json] if form == "json" else _for_people(structlog),
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


def _render_json(_logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    """All in one step: structlog's own, one after another, take as long as a review."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exception()
    line: dict[str, Any] = {
        "timestamp": datetime.now(UTC).isoformat(),
        "level": "error" if method == "exception" else method,
        "event": event.pop("event"),
    }
    for name, value in event.items():
        line[name] = value if not isinstance(value, str) or len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT]
    if isinstance(error, BaseException):
        line["exception"] = "".join(traceback.format_exception(error))[-_LONGEST_TEXT:]
    return _encode(line).decode()


class _Writer:
    """Gathers lines. Whoever logs outside the event loop writes at once."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def msg(self, line: str) -> None:
        if self._bytes > _MOST_HELD_BYTES:
            return
        encoded = f"{line}\n".encode()
        self._lines.append(encoded)
        self._bytes += len(encoded)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        if self._bytes > _MOST_BYTES:
            self.flush()
        if self._lines and self._timer is None:
            self._timer = loop.call_later(_FLUSH_SECONDS, self._flush_later)

    debug = info = warning = error = critical = exception = msg

    def flush(self) -> None:
        """Writes what a reader has room for. One that is gone does not stop the webhook."""
        rest = b"".join(self._lines)
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        try:
            # A pipe with room takes a page without making us wait.
            while rest and poll.poll(0):
                rest = rest[os.write(2, rest[: select.PIPE_BUF]) :]
        except (OSError, ValueError):
            rest = b""
        self._lines = [rest] if rest else []
        self._bytes = len(rest)

    def _flush_later(self) -> None:
        self._timer = None
        self.flush()
        if self._lines:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._flush_later)
