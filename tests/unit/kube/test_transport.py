"""The HTTP client, against servers that say exactly what the test wants."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kube.client import transport as module
from gpuslice.kube.client.api import _lines
from gpuslice.kube.client.transport import Transport, TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[["Client"], Awaitable[None]]

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_PATIENCE = 30.0


class Client:
    """The server's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self._reader = reader
        self.writer = writer
        #: Which connection this is, from 1 on.
        self.number = number

    async def request(self) -> bytes:
        """The head of a request with no body."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def body(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    def say(self, data: bytes) -> None:
        self.writer.write(data)


@asynccontextmanager
async def _server(serve: Serve) -> AsyncIterator[Transport]:
    connections = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            await serve(Client(reader, writer, connections))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = Transport(f"http://127.0.0.1:{port}/prefix/", None)
    try:
        yield transport
    finally:
        await transport.close()
        server.close()
        await server.wait_closed()


async def _get(transport: Transport, silence: float = _PATIENCE) -> tuple[int, bytes]:
    return await transport.call("GET", "/x", {}, None, silence=silence)


async def test_a_call_says_what_it_is_told_to_and_returns_the_whole_answer() -> None:
    heard: list[bytes] = []

    async def serve(client: Client) -> None:
        heard.append(await client.request())
        heard.append(await client.body(4))
        client.say(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        client.say(b"4\r\ndefg\r\n0\r\n\r\n")

    async with _server(serve) as transport:
        answer = await transport.call("POST", "/x?a=b", {"Accept": "json"}, b"body", silence=_PATIENCE)

    assert answer == (201, b"abcdefg")
    head, body = heard
    assert head.startswith(b"POST /prefix/x?a=b HTTP/1.1\r\nHost: 127.0.0.1:")
    assert head.endswith(b"Accept: json\r\nContent-Length: 4\r\n\r\n")
    assert body == b"body"


async def test_a_connection_is_used_again() -> None:
    numbers: list[int] = []

    async def serve(client: Client) -> None:
        while True:
            await client.request()
            numbers.append(client.number)
            client.say(_OK)

    async with _server(serve) as transport:
        for _ in range(5):
            assert await _get(transport) == (200, b"ok")
    assert numbers == [1] * 5


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_kept_connection_that_the_server_ended_is_noticed_and_reading_is_tried_again(method: str) -> None:
    """A request that might have had an effect is not: the caller decides."""

    async def serve(client: Client) -> None:
        await client.request()
        client.say(_OK)
        if client.number == 1:
            await client.request()  # and no answer

    async with _server(serve) as transport:
        await _get(transport)
        if method == "GET":
            assert await _get(transport) == (200, b"ok")
        else:
            with pytest.raises(TransportError, match="ended before the answer"):
                await transport.call(method, "/x", {}, None, silence=_PATIENCE)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (b"", "the connection ended before the answer did"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "the connection ended before the answer did"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", "the connection ended before the answer did"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "this is no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", "this is no HTTP answer"),
    ],
)
async def test_half_an_answer_is_none(said: bytes, complaint: str) -> None:
    async def serve(client: Client) -> None:
        await client.request()
        client.say(said)

    async with _server(serve) as transport:
        with pytest.raises(TransportError, match=complaint):
            await _get(transport)


async def test_a_server_that_is_silent_for_too_long_is_given_up() -> None:
    given_up = asyncio.Event()

    async def serve(client: Client) -> None:
        await client.request()
        client.say(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await given_up.wait()

    async with _server(serve) as transport:
        with pytest.raises(TransportError, match="nothing came for 0 s"):
            await _get(transport, silence=0.05)
        given_up.set()


async def test_a_call_that_is_cancelled_takes_its_connection_with_it() -> None:
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def serve(client: Client) -> None:
        await client.request()
        if client.number == 1:
            asked.set()
            await let_go.wait()
        client.say(_OK)

    async with _server(serve) as transport:
        call = asyncio.create_task(_get(transport))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await _get(transport) == (200, b"ok")
        let_go.set()


async def test_an_answer_without_an_end_is_told_piece_by_piece() -> None:
    heard = asyncio.Event()

    async def serve(client: Client) -> None:
        await client.request()
        client.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n")
        await heard.wait()
        client.say(b"4\r\ntwo\n\r\n0\r\n\r\n")

    async with (
        _server(serve) as transport,
        transport.stream("/x", {}, patience=_PATIENCE, silence=_PATIENCE) as (status, pieces),
    ):
        lines = _lines(pieces)
        first = await anext(lines)
        heard.set()
        rest = [line async for line in lines]
    assert (status, first, rest) == (200, b"one", [b"two"])


async def test_what_comes_before_the_answer_is_not_the_answer() -> None:
    async def serve(client: Client) -> None:
        await client.request()
        client.say(b"HTTP/1.1 100 Continue\r\n\r\n")
        client.say(_OK)

    async with _server(serve) as transport:
        assert await _get(transport) == (200, b"ok")


async def test_an_answer_that_is_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 100)

    async def serve(client: Client) -> None:
        await client.request()
        client.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000)

    async with _server(serve) as transport:
        with pytest.raises(TransportError, match="longer than 100 bytes"):
            await _get(transport)


async def test_a_missing_server_is_an_error_that_says_so() -> None:
    with pytest.raises(TransportError, match=r"(?i)connect"):
        await _get(Transport("http://127.0.0.1:1", None))


@pytest.mark.parametrize("target", ["/x y", "/x\r\nHost: other", "/é"])
async def test_a_target_cannot_become_more_than_a_target(target: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        await Transport("http://127.0.0.1:1", None).call("GET", target, {}, None, silence=1)


@given(st.lists(st.binary().map(lambda line: line.replace(b"\n", b"")), max_size=5), st.data())
def test_lines_are_the_same_however_the_bytes_arrive(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    async def arrive() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def read() -> list[bytes]:
        return [line async for line in _lines(arrive())]

    assert asyncio.run(read()) == lines
