"""Clients that are slow, silent, many, or do not read: others do not notice them, and they hold nothing for long."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from gpuslice.admission.context import Context, UnknownError, UnknownNamespaceError
from gpuslice.http import connection_pool
from gpuslice.http.connection import Limits
from tests.unit.admission.making import review_of
from tests.webhook.support import HAMI, JSON, NO_GPU, Client, eventually, request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.admission.cluster.quota_reservations import Wanted
    from tests.webhook.conftest import StartServer

SHORT = 0.2
HEAD, _, BODY = request("POST", "/mutate", review_of(NO_GPU), JSON).partition(b"\r\n\r\n")


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00", b"GE"])
def test_a_handshake_has_a_deadline(serve: StartServer, sent: bytes) -> None:
    server = serve(limits=Limits(handshake=SHORT))
    with Client(server.port) as client:
        client.send(sent)
        assert client.rest() == b""
    assert server.faults("slow_handshake") == 1
    assert server.review(NO_GPU).response["allowed"]


@pytest.mark.parametrize(
    ("limits", "sent"),
    [
        (Limits(head=SHORT), HEAD[:30]),
        (Limits(request=SHORT), HEAD + b"\r\n\r\n"),
        (Limits(request=SHORT), HEAD + b"\r\n\r\n" + BODY[:-1]),
    ],
    ids=["head", "no body", "half a body"],
)
def test_half_a_request_has_a_deadline_and_hears_of_it(serve: StartServer, limits: Limits, sent: bytes) -> None:
    server = serve(limits=limits)
    with server.connect() as client:
        client.send(sent)
        answer = client.receive()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert client.rest() == b""
    assert server.faults("slow_request") == 1
    assert server.review(NO_GPU).response["allowed"]


def test_one_byte_after_another_does_not_move_the_deadline(serve: StartServer) -> None:
    server = serve(limits=Limits(head=SHORT, request=SHORT, linger=SHORT))
    with server.connect() as client:
        client.send(HEAD)

        def is_over() -> bool:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                client.send(b"a")
                return client.is_closed()
            return True

        eventually(is_over, "the request is refused though bytes keep coming")
    assert server.faults("slow_request") == 1


def test_an_idle_connection_is_closed_in_order(serve: StartServer) -> None:
    server = serve(limits=Limits(idle=SHORT))
    with server.connect() as client:
        assert client.review(NO_GPU).response["allowed"]
        # A clean end of TLS: anything else would be an error here.
        assert client.socket.recv(1) == b""
    assert server.metrics()["gpuslice_webhook_connections"] == 1  # the one that asks for it


def test_idle_connections_live_longer_than_the_api_server_keeps_them() -> None:
    assert Limits().idle > 90


def test_a_client_that_does_not_read_is_cut_off(serve: StartServer) -> None:
    server = serve(limits=Limits(unread=SHORT))
    asked = request("POST", "/mutate", review_of(HAMI), JSON) * 100
    with server.connect() as client:
        client.socket.settimeout(0.1)

        def is_over() -> bool:
            try:
                client.send(asked)
            except TimeoutError:  # the server reads no more, either
                return server.faults("unread_answer") == 1
            except OSError:
                return True
            return False

        eventually(is_over, "the server hangs up")
    assert server.faults("unread_answer") == 1
    assert server.review(NO_GPU).response["allowed"]


def test_silent_connections_make_room_for_a_newcomer(serve: StartServer) -> None:
    server = serve(max_connections=8)
    with contextlib.ExitStack() as stack:
        known = stack.enter_context(server.connect())
        assert known.review(NO_GPU).response["allowed"]
        silent = [stack.enter_context(Client(server.port)) for _ in range(100)]
        # The client that asked for a review keeps its connection; the oldest of the others are gone.
        assert known.review(NO_GPU).response["allowed"]
        assert silent[0].rest() == b""
        assert server.review(HAMI).response["allowed"]
        assert known.review(NO_GPU).response["allowed"]
        metrics = server.metrics()
    assert metrics['gpuslice_webhook_faults_total{reason="crowded_out"}'] >= 92
    assert metrics["gpuslice_webhook_connections"] <= 9


def test_when_all_are_known_the_longest_silent_goes(serve: StartServer) -> None:
    server = serve(max_connections=4)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(4)]
        for client in (*clients, *clients[1:]):
            assert client.review(NO_GPU).response["allowed"]
        newcomer = stack.enter_context(server.connect())
        assert newcomer.review(NO_GPU).response["allowed"]
        assert clients[0].rest() == b""
        for client in clients[1:]:
            assert client.review(NO_GPU).response["allowed"]


def test_half_bodies_do_not_take_all_memory(serve: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "MAX_HELD_BYTES", 10 * 1024 * 1024)
    server = serve()
    half = request("POST", "/mutate", b"", JSON | {"Content-Length": str(4 * 1024 * 1024)}) + b" " * 3 * 1024 * 1024
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(6)]
        for client in clients:
            client.send(half)
        # Three of six bodies fit: the server refuses those that began first, and says why.
        for client in clients[:3]:
            answer = client.receive()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert client.rest() == b""
        assert server.faults("out_of_memory") == 3
        rest = review_of(NO_GPU)
        clients[-1].send(b" " * (1024 * 1024 - len(rest)) + rest)
        assert clients[-1].receive().response["allowed"]


def test_reviews_that_wait_for_their_answer_count_as_well(serve: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_pool, "MAX_HELD_BYTES", 5 * 1024 * 1024)
    waiting = Waiting()
    server = serve(cluster=waiting)
    large = request("POST", "/mutate", review_of(HAMI) + b" " * 2 * 1024 * 1024, JSON)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(3)]
        for number, client in enumerate(clients):
            client.send(large)
            if number < 2:
                eventually(lambda number=number: waiting.asked > number, "it waits for its namespace")  # type: ignore[misc]
        # A denial: with any other answer, a client could pass pods by sending enough at a time.
        response = clients[2].receive().response
        assert (response["allowed"], response["status"]["code"]) == (False, 503)
        assert "too many large requests" in response["status"]["message"]
        server.call(waiting.over.set)
        assert all(client.receive().response["allowed"] for client in clients[:2])
        # What they held is free again.
        assert server.review(review_of(HAMI) + b" " * 2 * 1024 * 1024).response["allowed"]


def test_a_review_is_denied_when_those_that_wait_are_too_much_alone(
    serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = review_of(HAMI) + b" " * 1024 * 1024
    # Their last bytes are one too many, and there is no asking them to go.
    monkeypatch.setattr(connection_pool, "MAX_HELD_BYTES", 2 * len(body) - 1)
    waiting = Waiting()
    server = serve(cluster=waiting)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(3)]
        for number, client in enumerate(clients):
            client.send(request("POST", "/mutate", body, JSON))
            if number < 2:
                eventually(lambda number=number: waiting.asked > number, "it waits for its namespace")  # type: ignore[misc]
        response = clients[2].receive().response
        assert (response["allowed"], response["status"]["code"]) == (False, 503)
        assert clients[2].rest() == b""
        assert (server.faults("out_of_memory"), server.faults("failed")) == (1, 0)
        server.call(waiting.over.set)
        assert all(client.receive().response["allowed"] for client in clients[:2])


class Waiting:
    """A cluster that knows no namespace until it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.over = asyncio.Event()

    def context(self) -> Context:
        return Context(namespace_labels=self._labels)

    def _labels(self, namespace: str) -> Mapping[str, str]:
        if not self.over.is_set():
            raise UnknownNamespaceError(namespace)
        return MappingProxyType({})

    async def learn(self, _unknown: UnknownError) -> None:
        self.asked += 1
        await self.over.wait()

    async def reserve(self, namespace: str, wanted: Wanted) -> None:
        """No quotas here."""

    def synced(self) -> bool:
        return True


def test_a_client_that_goes_in_the_middle_leaves_nothing(serve: StartServer) -> None:
    server = serve()
    for sent in (b"", HEAD, HEAD + b"\r\n\r\n" + BODY[:10], HEAD + b"\r\n\r\n" + BODY):
        with server.connect() as client:
            client.send(sent)
    eventually(lambda: server.metrics()["gpuslice_webhook_connections"] == 1, "all are gone")
    assert server.metrics()["gpuslice_webhook_requests_in_flight"] == 0
