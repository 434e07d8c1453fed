"""The bytes of a connection, with TLS or without. No I/O: what comes in and what goes out passes through memory.

TLS is done here and not by the event loop, because a connection is counted, limited and closed from its first byte
on, and not from the end of its handshake on, and because each new connection can have the newest certificate.
"""

from __future__ import annotations

import ssl
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from gpuslice.http.client_authority import ClientAuthority

#: A TLS record holds so much; larger pieces would only make limits less exact.
PIECE_BYTES: Final = 16 * 1024


class StreamError(Exception):
    """Raised when the peer does not speak TLS as it should; `reason` is a label of metrics."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason: Final = reason


class StreamEndedError(Exception):
    """Raised when the peer said that it sends no more."""


class Stream(Protocol):
    """Between the socket and the reader of requests."""

    #: Nothing can be sent yet.
    handshaking: bool
    #: Whether the peer was asked to prove that it is an API server, and whether it did.
    asks_for_proof: bool
    authenticated: bool

    @property
    def buffered(self) -> int:
        """Bytes put in and not taken out."""

    def put(self, data: bytes) -> None:
        """Bytes from the socket."""

    def take(self) -> bytes:
        """The next piece of what the peer says; empty if there is no whole one."""

    def wrap(self, data: bytes) -> bytes:
        """What to write to the socket to say that."""

    def output(self) -> bytes:
        """What the stream itself has to write to the socket: its handshake, its alerts."""

    def farewell(self) -> None:
        """Ends what we send; `output` then has the alert that tells the peer."""


class PlainStream:
    """No TLS."""

    __slots__ = ("_pieces", "asks_for_proof", "authenticated", "buffered", "handshaking")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self.buffered = 0
        self.handshaking = self.asks_for_proof = self.authenticated = False

    def put(self, data: bytes) -> None:
        self._pieces.extend(data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))
        self.buffered += len(data)

    def take(self) -> bytes:
        if not self._pieces:
            return b""
        piece = self._pieces.popleft()
        self.buffered -= len(piece)
        return piece

    def wrap(self, data: bytes) -> bytes:
        return data

    def output(self) -> bytes:
        return b""

    def farewell(self) -> None:
        """Does nothing: plain HTTP has no closing alert."""


class TlsStream:
    """The server's side of TLS."""

    __slots__ = ("_authority", "_incoming", "_outgoing", "_tls", "asks_for_proof", "authenticated", "handshaking")

    def __init__(self, context: ssl.SSLContext, authority: ClientAuthority | None = None) -> None:
        self._authority = authority
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.handshaking = True
        self.asks_for_proof = authority is not None
        self.authenticated = False

    @property
    def buffered(self) -> int:
        return self._incoming.pending

    def put(self, data: bytes) -> None:
        self._incoming.write(data)

    def take(self) -> bytes:
        try:
            if self.handshaking:
                self._tls.do_handshake()
                self.handshaking = False
                if self._authority is not None:
                    self.authenticated = self._authority.recognizes(self._tls.getpeercert())
            # Without this look each request would end with an exception that says: no more.
            if not self._incoming.pending and not self._tls.pending():
                return b""
            data = self._tls.read(PIECE_BYTES)
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLZeroReturnError:
            raise StreamEndedError from None
        except ssl.SSLError as error:
            raise StreamError(self._label(error), error.reason or str(error)) from None
        if not data:
            raise StreamEndedError
        return data

    def _label(self, error: ssl.SSLError) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return "client_certificate"
        return "not_tls" if self.handshaking else "broken_tls"

    def wrap(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def output(self) -> bytes:
        return self._outgoing.read() if self._outgoing.pending else b""

    def farewell(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            return  # it waits for the peer's answer, and we do not
