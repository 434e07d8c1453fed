"""Structured logs: one event with named values, for machines as JSON or for people on a console."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
from typing import Any, Final

import msgspec
import structlog

_LONGEST: Final = 4000
_encode: Final = msgspec.json.Encoder(enc_hook=repr).encode


def configure(form: str, *, debug: bool) -> None:
    """Logs to standard error. A reader that is gone does not stop the agent."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(_to_json)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if debug else logging.INFO),
        logger_factory=_Writer,
        cache_logger_on_first_use=True,
    )


def _to_json(event: dict[str, Any], **_: object) -> str:
    try:
        return _encode(event).decode()
    except (ValueError, TypeError, OverflowError):  # text that is no Unicode, numbers without measure
        return json.dumps(event, default=repr)


class _Writer:
    """Writes a line to standard error, if anybody reads it."""

    def __init__(self, *_arguments: object) -> None:
        pass

    def msg(self, line: str) -> None:
        # A pipe that nobody empties must not stop the agent: with room for a page, a line does not wait.
        poll = select.poll()
        try:
            poll.register(2, select.POLLOUT)
            if poll.poll(0):
                os.write(2, f"{line[:_LONGEST]}\n".encode())
        except (OSError, ValueError):
            return

    debug = info = warning = error = critical = exception = msg


def logger() -> structlog.typing.FilteringBoundLogger:
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return log
