"""One connection, from its first byte to its last: TLS, requests one after another, answers, and a deadline for each
step.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import termios
from contextvars import copy_context
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

import structlog

from gpuslice.http.connection_pool import FREE_HELD_BYTES
from gpuslice.http.fair_share import caller
from gpuslice.http.requests import BadRequestError, RequestReader
from gpuslice.http.responses import CONTINUE, Response, plain
from gpuslice.http.streams import StreamEndedError, StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from gpuslice.http.connection_pool import ConnectionPool
    from gpuslice.http.requests import Request
    from gpuslice.http.streams import Stream

    Handler = Callable[[Request], Response | Coroutine[Any, Any, Response]]

#: What a client may send ahead while it waits for an answer.
_MAX_AHEAD_BYTES: Final = 64 * 1024
#: Requests of one connection that are answered before others are looked at.
_ANSWERS_AT_ONCE: Final = 8
_SECONDS_AT_ONCE: Final = 0.002
#: Answers that wait for a client to read them; beyond that it is not listened to.
_MAX_UNREAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how large, in seconds and bytes."""

    handshake: float = 10.0
    head: float = 10.0
    #: From the first byte to the last; the API server waits at most 30 s for a webhook.
    request: float = 30.0
    answer: float = 30.0
    #: For a client to read what it was answered.
    unread: float = 10.0
    #: The API server closes connections that were idle for 90 s. It must close first, or a request could
    #: cross with the end of its connection.
    idle: float = 150.0
    #: For a client to read a refusal while it still sends.
    linger: float = 2.0
    #: An API server takes requests of 3 MiB itself. What is longer in a review (`<` is written as \u003c) is denied.
    body_bytes: int = 4 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Site:
    """What all connections of a listener share."""

    handle: Handler
    pool: ConnectionPool
    loop: asyncio.AbstractEventLoop
    #: Called with the reason and the client's address when a connection ends otherwise than it should.
    fault: Callable[[str, str], None]
    limits: Limits
    #: Words the refusal of a body by its beginning; None if there is nothing to say but HTTP's own.
    refuse: Callable[[bytes, BadRequestError], Response | None] = lambda _beginning, _fault: None
    #: Each answer is the last of its connection.
    draining: bool = False


class _Phase(Enum):
    HANDSHAKE = auto()
    IDLE = auto()
    REQUEST = auto()
    ANSWER = auto()
    UNREAD = auto()
    LINGER = auto()
    CLOSED = auto()


_log: Final = structlog.get_logger()


class Connection(asyncio.Protocol):
    """Answers one request after another; the next is looked at when the one before has its answer."""

    __slots__ = (
        "_asked_bytes",
        "_fault",
        "_limits",
        "_paused",
        "_phase",
        "_reader",
        "_since",
        "_site",
        "_spoken",
        "_stream",
        "_task",
        "_transport",
        "deadline",
        "source",
    )

    _transport: asyncio.Transport

    def __init__(self, site: Site, stream: Stream, source: str) -> None:
        self._site = site
        #: The address that it comes from.
        self.source: Final = source
        self._limits = limits = site.limits
        self._stream = stream
        self._reader = RequestReader(limits.body_bytes)
        self._task: asyncio.Task[Response] | None = None
        self._fault: BadRequestError | None = None
        self._asked_bytes = 0
        self._paused = self._spoken = False
        self._since = self.deadline = 0.0
        self._enter(_Phase.HANDSHAKE if stream.handshaking else _Phase.IDLE, limits.handshake)

    @property
    def in_handshake(self) -> bool:
        return self._phase is _Phase.HANDSHAKE

    @property
    def in_request(self) -> bool:
        return self._phase in (_Phase.REQUEST, _Phase.ANSWER)

    @property
    def incoming(self) -> bool:
        return self._phase is _Phase.REQUEST

    @property
    def held_bytes(self) -> int:
        """Of bodies: of what comes in, and of what waits for its answer."""
        return self._reader.held_bytes + self._asked_bytes

    @property
    def unread_bytes(self) -> int:
        """Received, and not looked at."""
        return self._stream.buffered

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_MAX_UNREAD_BYTES)
        self._site.pool.join(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._phase = _Phase.CLOSED
        self._site.pool.leave(self)
        self._reader.close()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._phase in (_Phase.LINGER, _Phase.CLOSED):
            return
        if not self._spoken:
            self._spoken = True
            self._site.pool.heard(self)
        self._stream.put(data)
        if self._reader.authenticated:
            self.advance()
        else:
            self._site.pool.turns.work(self)
        if self._phase in (_Phase.ANSWER, _Phase.UNREAD) and self._stream.buffered > _MAX_AHEAD_BYTES:
            self.pause()

    def eof_received(self) -> bool:
        """The client has gone. A client that does not wait for its answer gets none."""
        return False

    def pause_writing(self) -> None:
        if self._phase is _Phase.IDLE:
            self._enter(_Phase.UNREAD, self._limits.unread)

    def resume_writing(self) -> None:
        if self._phase is _Phase.UNREAD:
            self._enter(_Phase.IDLE, self._limits.idle)
            self.advance()

    # From bytes to answers.

    def advance(self) -> None:
        """Answers the requests that have arrived, or the first of them if they are many."""
        try:
            self._read_requests()
        except StreamEndedError:
            self._close()
        except StreamError as error:
            self._end(error.reason)
        except Exception:  # noqa: BLE001 - one connection must not take the others with it
            _log.exception("connection failed")
            self.drop("failed")

    def _read_requests(self) -> None:
        reader = self._reader
        answered, late = 0, 0.0
        while self._phase in (_Phase.HANDSHAKE, _Phase.IDLE, _Phase.REQUEST):
            if reader.ready:
                if answered == 1:  # most come alone, and need no clock
                    late = monotonic() + _SECONDS_AT_ONCE
                elif answered == _ANSWERS_AT_ONCE or (answered and monotonic() > late):
                    self._site.pool.turns.wait(self)
                    return
                answered += 1
                self._answer(reader.ready.popleft())
            elif self._fault is not None:
                self._refuse(self._fault)
            elif not self._read_piece():
                break
        if reader.begun and self._phase in (_Phase.IDLE, _Phase.REQUEST):
            self._wait_for_more()
        self._resume()

    def _read_piece(self) -> bool:
        """Takes the next bytes of what the client says; False if there are none."""
        stream = self._stream
        piece = stream.take()
        if output := stream.output():
            self._transport.write(output)
        if self._phase is _Phase.HANDSHAKE and not stream.handshaking:
            self._shake_hands()
        if not piece:
            return False
        try:
            self._reader.feed(piece)
        except BadRequestError as fault:
            self._fault = fault
        return True

    def _shake_hands(self) -> None:
        """Notes, when the handshake is done, whether the client is an API server."""
        stream, reader = self._stream, self._reader
        reader.authenticated = stream.authenticated
        reader.refuses_posts = stream.asks_for_proof and not stream.authenticated
        if stream.authenticated:
            self._site.pool.authenticate(self)
        # A client that may not ask for reviews has no need to keep its connection.
        self._enter(_Phase.IDLE, self._limits.head if reader.refuses_posts else self._limits.idle)

    def _wait_for_more(self) -> None:
        """Sets the deadline for the rest of a request that has begun."""
        reader = self._reader
        if self._phase is _Phase.IDLE:
            self._enter(_Phase.REQUEST, self._limits.head)
        if reader.in_body:
            self.deadline = self._since + self._limits.request
            if reader.wants_continue:
                reader.wants_continue = False
                self._transport.write(self._stream.wrap(CONTINUE))
            if reader.held_bytes > FREE_HELD_BYTES:
                self._site.pool.hold(self)

    def _answer(self, request: Request) -> None:
        answer = self._site.handle(request)
        if isinstance(answer, Response):
            self._send(request, answer)
            return
        self._enter(_Phase.ANSWER, self._limits.answer)
        self._asked_bytes = len(request.body)
        context = copy_context()
        context.run(caller.set, self.source)
        self._task = self._site.loop.create_task(answer, context=context)
        self._task.add_done_callback(lambda task: self._answered(request, task))

    def _answered(self, request: Request, task: asyncio.Task[Response]) -> None:
        self._task = None
        if self._phase is _Phase.CLOSED:
            return
        if task.cancelled():
            answer = plain(HTTPStatus.INTERNAL_SERVER_ERROR, "gpuslice: this took too long")
        else:
            answer = task.result()  # handlers answer their own failures
        self._send(request, answer)
        self.advance()

    def _send(self, request: Request, answer: Response) -> None:
        """Sends the answer. The connection is then ready for the next request, or closes."""
        site = self._site
        close = site.draining or not request.keep_alive
        if site.pool.authenticates and not self._stream.asks_for_proof:
            close = True  # on its next connection the client is asked for the proof that is wanted now
        self._enter(_Phase.IDLE, self._limits.head if self._reader.refuses_posts else self._limits.idle)
        if answer.proper and not request.authenticated:
            self._site.pool.recognize(self)
        self._asked_bytes = 0
        if len(request.body) > FREE_HELD_BYTES:
            self._site.pool.release(self)
        # May find at once that the client does not read: see pause_writing.
        self._transport.write(self._stream.wrap(answer.render(close=close, head_only=request.method == b"HEAD")))
        if answer.on_sent is not None:
            answer.on_sent()
        if close:
            self._close()

    def _refuse(self, fault: BadRequestError) -> None:
        """Sends the last answer of a connection whose next bytes cannot be understood."""
        self._site.fault(fault.reason, self.source)
        answer = self._site.refuse(self._reader.beginning, fault) or plain(fault.status, f"gpuslice: {fault}")
        self._transport.write(self._stream.wrap(answer.render(close=True)))
        self._linger()

    # How a connection ends.

    def expire(self) -> None:
        """Ends what the connection does, because its deadline has passed."""
        if self._phase is _Phase.IDLE:
            self._close()
        elif self._phase is _Phase.REQUEST:
            self._refuse(
                BadRequestError(HTTPStatus.REQUEST_TIMEOUT, "slow_request", "the rest of the request did not come")
            )
        elif self._phase is _Phase.ANSWER and self._task is not None:
            self.deadline = self._site.loop.time() + self._limits.linger
            self._task.cancel()
        else:
            reasons = {_Phase.HANDSHAKE: "slow_handshake", _Phase.UNREAD: "unread_answer"}
            self.drop(reasons.get(self._phase, "lingering"))

    def give_way(self) -> None:
        """Refuses the body that is coming in, because all bodies together hold too much memory."""
        self._refuse(
            BadRequestError(
                HTTPStatus.SERVICE_UNAVAILABLE, "out_of_memory", "too many large requests at once; try again"
            )
        )

    def close_if_quiet(self, seconds: float) -> None:
        """Closes it if it was idle for so long and no request is on its way in."""
        idle = self._phase is _Phase.IDLE and self._site.loop.time() - self._since >= seconds
        if idle and not self._stream.buffered and not self._waiting_bytes():
            self._close()

    def drop(self, reason: str) -> None:
        """Ends the connection at once, in any phase."""
        if self._phase is not _Phase.CLOSED:
            self._site.fault(reason, self.source)
            self._gone()
            self._transport.abort()

    def _end(self, reason: str) -> None:
        """Ends the connection after what was written."""
        self._site.fault(reason, self.source)
        if output := self._stream.output():
            self._transport.write(output)
        self._gone()
        self._transport.close()

    def _close(self) -> None:
        """Ends the connection in order. The client has some time to read what is still to be written."""
        self._say_farewell()
        self._enter(_Phase.LINGER, self._limits.unread)
        self._transport.close()

    def _linger(self) -> None:
        """Sends no more, but listens: with bytes unread the kernel would reset the connection and drop the answer."""
        self._say_farewell()
        self._reader.close()
        self._site.pool.release(self)
        self._enter(_Phase.LINGER, self._limits.linger)
        self._resume()
        self._transport.write_eof()

    def _say_farewell(self) -> None:
        self._stream.farewell()
        if output := self._stream.output():
            self._transport.write(output)

    def _gone(self) -> None:
        self._phase = _Phase.CLOSED
        self._site.pool.leave(self)

    def _enter(self, phase: _Phase, seconds: float) -> None:
        self._phase = phase
        self._since = now = self._site.loop.time()
        self.deadline = now + seconds

    def pause(self) -> None:
        """Reads no more from the client until what has arrived is done."""
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._stream.buffered <= _MAX_AHEAD_BYTES and self._phase is not _Phase.CLOSED:
            self._paused = False
            self._transport.resume_reading()

    def _waiting_bytes(self) -> int:
        """What the kernel has received and we have not read."""
        count = array.array("i", [0])
        fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.FIONREAD, count)
        return count[0]
