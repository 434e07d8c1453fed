"""Any bytes at all: an answer or a closed connection, and the next request is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuslice.http import connection_pool
from gpuslice.http.connection import Limits
from gpuslice.http.requests import BadRequestError, RequestReader
from tests.unit.admission.making import review_of
from tests.webhook.support import CASTSLICE, HAMI, JSON, NO_GPU, Client, request

if TYPE_CHECKING:
    from tests.webhook.conftest import StartServer
    from tests.webhook.support import ServerThread

WHOLE = request("POST", "/mutate", review_of(CASTSLICE), JSON)
LAST = request("POST", "/mutate", review_of(HAMI), JSON | {"Connection": "close"})
PARTS = [
    b"\r\n",
    b": ",
    b"Content-Length: 10",
    b"Transfer-Encoding: chunked",
    b"HTTP/1.1",
    b"0\r\n\r\n",
    b"{",
    b"[" * 99,
]
FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A request in which something was changed, added or left out."""
    data = WHOLE
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 20)))
        data = data[:start] + draw(st.binary(max_size=10) | st.sampled_from(PARTS)) + data[end:]
    return data


@pytest.fixture
def quick(serve: StartServer, monkeypatch: pytest.MonkeyPatch) -> ServerThread:
    """A server with short timeouts, so that half of something is over at once."""
    monkeypatch.setattr(connection_pool, "_SWEEP_SECONDS", 0.01)
    return serve(limits=Limits(handshake=0.3, head=0.05, request=0.05, idle=5, linger=0.01))


@FEW
@given(data=damaged() | st.binary(max_size=300))
def test_damaged_requests_end_no_other_connection(quick: ServerThread, data: bytes) -> None:
    with quick.connect() as client:
        client.send(data + LAST)
        statuses = [part[:3] for part in client.rest().split(b"HTTP/1.1 ")[1:]]
        assert statuses, "there was an answer"
    assert quick.review(NO_GPU).response["allowed"]


@FEW
@given(data=st.binary(min_size=1, max_size=600), hello=st.booleans())
def test_random_bytes_instead_of_tls_end_no_other_connection(quick: ServerThread, data: bytes, hello: bool) -> None:  # noqa: FBT001 - drawn
    with Client(quick.port) as client:
        client.send((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" if hello else b"") + data)
        client.rest()
    assert quick.review(HAMI).response["allowed"]


def read_all(pieces: list[bytes]) -> list[object]:
    """What a reader makes of it, up to what it cannot read."""
    reader = RequestReader(1000)
    read: list[object] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            read += reader.ready
            reader.ready.clear()
    except BadRequestError as error:
        read += reader.ready
        read.append((error.status, error.reason))
    return read


@given(st.data())
def test_it_does_not_matter_in_which_pieces_requests_arrive(data: st.DataObject) -> None:
    stream = request("POST", "/mutate?a=b", b"x" * 100, JSON) + request("GET", "/healthz") + data.draw(damaged())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read_all(pieces) == read_all([stream])
