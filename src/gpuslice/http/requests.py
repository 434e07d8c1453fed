"""HTTP requests out of a stream of bytes, with limits on everything that a client could make large. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import httptools

#: Of a request line with all headers.
MAX_HEAD_BYTES: Final = 64 * 1024
#: Of a body that is refused: enough for the refusal to name the review that it answers.
BEGINNING_BYTES: Final = 1024
#: No honest client sends so many requests in one piece.
_MAX_WAITING: Final = 256


class BadRequestError(Exception):
    """Raised when what follows in the stream cannot be understood, or is not wanted. The connection ends with it."""

    def __init__(self, status: HTTPStatus, reason: str, text: str) -> None:
        super().__init__(text)
        self.status: Final = status
        #: A label of metrics.
        self.reason: Final = reason


@dataclass(slots=True)  # frozen, each would take three times as long to make
class Request:
    """A whole request. Nothing changes it."""

    method: bytes
    #: Without the query: the API server puts its timeout there.
    path: bytes
    content_type: bytes
    body: bytes
    keep_alive: bool
    #: Whether the client has proven that it is an API server, by a certificate of `--client-authority`.
    authenticated: bool = False


class RequestReader:
    """Reads the requests of one connection. What `feed` has completed stands in `ready`, in the order of arrival."""

    __slots__ = (
        "_chunks",
        "_content_type",
        "_max_body_bytes",
        "_parser",
        "_raw_bytes",
        "_target",
        "_too_long",
        "authenticated",
        "begun",
        "held_bytes",
        "in_body",
        "ready",
        "refuses_posts",
        "wants_continue",
    )

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.ready: deque[Request] = deque()
        #: Within a request, and within its body.
        self.begun = self.in_body = False
        #: The client waits for "100 Continue" before it sends the body.
        self.wants_continue = False
        self.held_bytes = 0
        #: What the connection knows of its client, for each request.
        self.authenticated = False
        #: The client had to prove that it is an API server, and did not: the reader keeps no byte of its reviews.
        self.refuses_posts = False
        self._raw_bytes = 0
        self._forget()

    def feed(self, data: bytes) -> None:
        """Takes the next bytes; at most some 16 KiB at once, so that limits are met closely."""
        assert self._parser is not None, "it is closed"
        self._raw_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request was completed without its body; there is no other protocol here to speak.
            self.ready.clear()
            raise BadRequestError(
                HTTPStatus.BAD_REQUEST, "not_http", "this server speaks HTTP/1.1 and nothing else; send no Upgrade"
            ) from None
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, BadRequestError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise BadRequestError(HTTPStatus.BAD_REQUEST, "not_http", f"this is not HTTP/1.1: {error}") from None
        if self.begun and self._raw_bytes > MAX_HEAD_BYTES:
            self._check_sizes()

    @property
    def beginning(self) -> bytes:
        """Of the body that is coming in."""
        return b"".join(self._chunks)[:BEGINNING_BYTES]

    def close(self) -> None:
        """The parser holds on to this object, and this object to it."""
        self._parser = None
        self._forget()
        self.held_bytes = 0

    def _check_sizes(self) -> None:
        if not self.in_body:
            raise BadRequestError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "head_too_large",
                f"the headers are longer than {MAX_HEAD_BYTES} bytes",
            )
        # Chunks have a length each, and may carry extensions and trailers: these must not grow without end, either.
        if self._raw_bytes > 2 * self._max_body_bytes + MAX_HEAD_BYTES:
            raise self._too_large()

    def _too_large(self) -> BadRequestError:
        return BadRequestError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "body_too_large",
            f"the body is longer than {self._max_body_bytes} bytes; raise --max-body if it should be taken",
        )

    def _forget(self) -> None:
        self._target = b""
        self._content_type = b""
        self._chunks: list[bytes] = []
        #: The client has said that the body is above the limit.
        self._too_long = False

    # What the parser calls.

    def on_message_begin(self) -> None:
        self.begun = True

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # The grammar is the parser's affair; these few have a meaning here, unless they come after a chunked body.
        if self.in_body:
            return
        lower = name.lower()
        if lower == b"content-type":
            self._content_type = value
        elif lower == b"content-length":
            self._too_long = value.isdigit() and int(value[:20]) > self._max_body_bytes
        elif lower == b"expect" and value.lower() == b"100-continue":
            self.wants_continue = True

    def on_headers_complete(self) -> None:
        self.in_body = True
        if self.refuses_posts:
            self._check_method()
        if self._too_long and self.wants_continue:
            raise self._too_large()

    def _check_method(self) -> None:
        if self._parser is not None and self._parser.get_method() == b"POST":
            raise BadRequestError(
                HTTPStatus.FORBIDDEN,
                "unauthenticated",
                "reviews are taken from API servers alone; send a client certificate of the --client-authority",
            )

    def on_body(self, data: bytes) -> None:
        self.wants_continue = False
        self.held_bytes += len(data)
        self._chunks.append(data)
        # The beginning is worth waiting for: with it, the API server understands the refusal.
        if self.held_bytes > (BEGINNING_BYTES if self._too_long else self._max_body_bytes):
            raise self._too_large()

    def on_message_complete(self) -> None:
        if len(self.ready) >= _MAX_WAITING:
            raise BadRequestError(HTTPStatus.TOO_MANY_REQUESTS, "too_many_waiting", "too many requests at once")
        parser, chunks = self._parser, self._chunks
        assert parser is not None, "it is closed"
        self.ready.append(
            Request(
                method=parser.get_method(),
                path=self._target.partition(b"?")[0],
                content_type=self._content_type,
                body=chunks[0] if len(chunks) == 1 else b"".join(chunks),
                keep_alive=parser.should_keep_alive(),
                authenticated=self.authenticated,
            )
        )
        self.begun = self.in_body = self.wants_continue = False
        self.held_bytes = self._raw_bytes = 0
        self._forget()
