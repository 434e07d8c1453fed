"""Answers of the server, and how they look on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. `proper` says that it answers a review: a client that sends one is most likely the API server."""

    status: int
    body: bytes
    content_type: bytes = TEXT
    #: Whole header lines, each with its end.
    headers: bytes = b""
    proper: bool = False
    #: Called when the answer is on its way: it writes the log and the metrics, which no client should wait for.
    on_sent: Callable[[], None] | None = None

    def render(self, *, close: bool, head_only: bool = False) -> bytes:
        """The bytes to send. One piece, so that it is one TLS record if it is short."""
        head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
            _STATUS_LINES[self.status],
            self.content_type,
            len(self.body),
            self.headers,
            b"Connection: close\r\n" if close else b"",
        )
        return head if head_only else head + self.body


def plain(status: int, text: str, headers: bytes = b"") -> Response:
    """An answer for people."""
    return Response(status, f"{text}\n".encode(), headers=headers)
