"""HTTP/1.1 to one server: calls over connections that are kept, and answers that do not end by themselves.

A client of our own, because a general one takes a sixth of the memory that the webhook may have. The grammar is
httptools', which the webhook's server has loaded anyway.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

import httptools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

_CONNECT_SECONDS: Final = 10.0
_PIECE_BYTES: Final = 64 * 1024
#: Each holds half a megabyte of buffers.
_MOST_IDLE: Final = 2
#: The server closes idle connections after a few minutes; one must not be used at the same moment.
_IDLE_SECONDS: Final = 30.0
#: Nothing that we ask for is larger: an object of a megabyte and a half can be nine as JSON, and a list comes in pages.
_MOST_BYTES: Final = 64 * 1024 * 1024


class TransportError(Exception):
    """Raised when a call got no whole answer. `unsent` says that the server cannot have acted on it."""

    def __init__(self, message: str, *, unsent: bool = False) -> None:
        super().__init__(message)
        self.unsent = unsent


class AnswerTooLongError(TransportError):
    """Raised when an answer is longer than the caller, or any caller, takes."""


class Answer(NamedTuple):
    status: int
    body: bytes


class Transport:
    """All connections to one server."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, server_name: str = "") -> None:
        address = urlsplit(server)
        if not address.hostname:
            raise ValueError(f"{server!r} names no host")
        self._host: Final = address.hostname
        self._port: Final = address.port or (443 if tls is not None else 80)
        self._prefix: Final = address.path.rstrip("/")
        self._authority: Final = address.netloc.rpartition("@")[2]
        self._tls = tls
        self._server_name = server_name or address.hostname
        self._idle: deque[tuple[_Connection, float]] = deque()
        self._open: set[_Connection] = set()

    async def call(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        silence: float,
        most_bytes: int | None = None,
    ) -> Answer:
        """One call and its whole answer. Raises AnswerTooLongError if that has more bytes."""
        request = self._request(method, target, headers, body)
        while True:
            connection, reused = await self._connection()
            try:
                status = await connection.ask(request, silence)
                answer = Answer(status, await connection.read_all(silence, most_bytes or _MOST_BYTES))
            except TransportError as error:
                self._drop(connection)
                # A kept connection may have been closed by the server meanwhile. Reading can be tried again safely.
                if reused and error.unsent and method == "GET":
                    continue
                raise
            except BaseException:
                self._drop(connection)
                raise
            self._keep(connection)
            return answer

    @asynccontextmanager
    async def stream(
        self, target: str, headers: Mapping[str, str], *, patience: float, silence: float
    ) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """The status, and the pieces of the answer as they come. The connection ends with it."""
        connection = await self._connect()
        try:
            status = await connection.ask(self._request("GET", target, headers, None), patience)
            yield status, connection.pieces(silence)
        finally:
            self._drop(connection)

    async def close(self) -> None:
        self._idle.clear()
        closing = list(self._open)
        for connection in closing:
            self._drop(connection)
        await asyncio.gather(*(connection.closed() for connection in closing))

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        if " " in target:
            raise ValueError(f"{target[:200]!r} cannot be sent")
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", f"Host: {self._authority}"]
        lines += [f"{name}: {text}" for name, text in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        for line in lines:
            # Whatever is put into an address or a header, it stays one.
            if not line.isascii() or not line.isprintable():
                raise ValueError(f"{line[:200]!r} cannot be sent")
        return "\r\n".join([*lines, "", ""]).encode() + (body or b"")

    async def _connection(self) -> tuple[_Connection, bool]:
        """One that can be used, and whether it was used before."""
        now = time.monotonic()
        while self._idle:
            connection, since = self._idle.pop()
            if connection.usable and now - since < _IDLE_SECONDS:
                return connection, True
            self._drop(connection)
        return await self._connect(), False

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._server_name if self._tls is not None else None,
                )
        except TimeoutError:
            raise TransportError(f"no connection within {_CONNECT_SECONDS:.0f} s", unsent=True) from None
        except ssl.SSLCertVerificationError as error:
            raise TransportError(f"its certificate is not trusted: {error.verify_message}", unsent=True) from None
        except OSError as error:
            raise TransportError(error.strerror or str(error), unsent=True) from None
        connection = _Connection(reader, writer)
        self._open.add(connection)
        return connection

    def _keep(self, connection: _Connection) -> None:
        if not connection.usable or len(self._idle) >= _MOST_IDLE:
            self._drop(connection)
        else:
            self._idle.append((connection, time.monotonic()))

    def _drop(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.close()


class _Connection:
    """One request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._keep_alive = True
        self._begin()

    @property
    def usable(self) -> bool:
        """Whether the next request can be sent: the last answer is whole, and the server has not gone."""
        return self._whole and self._keep_alive and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        # Not in order but at once: no one waits for the server to close its side, too.
        self._writer.transport.abort()

    async def closed(self) -> None:
        try:
            await self._writer.wait_closed()
        except OSError:
            return

    async def ask(self, request: bytes, silence: float) -> int:
        """Sends it, and returns the status when the head of the answer is there."""
        self._begin()
        try:
            self._writer.write(request)
            await self._writer.drain()
            while not self._head:
                await self._receive(silence)
        except OSError as error:
            raise TransportError(error.strerror or str(error), unsent=True) from None
        return int(self._parser.get_status_code())

    async def read(self, silence: float) -> bytes:
        """The next piece of the answer; empty at its end."""
        while not self._pieces and not self._whole:
            try:
                await self._receive(silence)
            except OSError as error:
                raise TransportError(error.strerror or str(error)) from None
        return self._pieces.popleft() if self._pieces else b""

    async def read_all(self, silence: float, most_bytes: int) -> bytes:
        pieces, size = [], 0
        while piece := await self.read(silence):
            pieces.append(piece)
            size += len(piece)
            if size > most_bytes:
                raise AnswerTooLongError(f"the answer is longer than {most_bytes} bytes")
        return b"".join(pieces)

    async def pieces(self, silence: float) -> AsyncIterator[bytes]:
        while piece := await self.read(silence):
            yield piece

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: deque[bytes] = deque()
        self._head = False
        self._whole = False
        self._heard = False

    async def _receive(self, silence: float) -> None:
        try:
            async with asyncio.timeout(silence):
                data = await self._reader.read(_PIECE_BYTES)
        except TimeoutError:
            raise TransportError(f"nothing came for {silence:.0f} s") from None
        if not data:
            raise TransportError("the connection ended before the answer did", unsent=not self._heard)
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise TransportError(f"this is no HTTP answer: {error}") from None

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._head = False

    def on_headers_complete(self) -> None:
        # 100 Continue and its like come before the answer.
        self._head = self._parser.get_status_code() >= 200
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._whole = self._head
