"""Tenants that give the webhook's event loop much to do delay an API server's review by a piece of it, not by all."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from gpuslice.http import fair_share
from gpuslice.http.client_authority import ClientAuthority
from tests.hostile.webhook.flood import held
from tests.unit.admission.making import container, pod, review_of
from tests.waiting import PATIENCE_SECONDS
from tests.webhook.support import HAMI, JSON, NO_GPU, Authority, Client, ServerThread, eventually, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.webhook.conftest import StartServer

TENANT = "127.0.0.2"
CONNECTIONS = 40
#: Costly, and below what is examined in a thread.
COSTLY = pod(*(container(f"c{number}", {"nvidia.com/gpumem": 1000 + number}) for number in range(400)))


@contextmanager
def _held_up(server: ServerThread) -> Iterator[None]:
    """Meanwhile the event loop does nothing: what is sent lies ready when it goes on."""
    begun, over = threading.Event(), threading.Event()

    def stand_still() -> None:
        begun.set()
        over.wait(PATIENCE_SECONDS)

    server.call(stand_still)
    assert begun.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        over.set()


def _nothing(_client: Client) -> None:
    """They are used later."""


@pytest.mark.parametrize(("body", "ahead"), [(COSTLY, 1), (NO_GPU, 100)], ids=["costly", "many at once"])
def test_a_review_does_not_wait_for_all_of_another_address(
    serve: StartServer, authority: Authority, body: dict[str, object], ahead: int
) -> None:
    server = serve()
    context = authority.client_context()
    sent = request("POST", "/validate", review_of(body), JSON) * ahead
    with held(CONNECTIONS, server.port, context, TENANT, lambda client: client.review(NO_GPU)) as tenants:
        with Client(server.port, context) as client:
            assert client.review(NO_GPU, "/validate").response["allowed"]
            before = _validated(server)
            with _held_up(server):
                for each in tenants:
                    each.send(sent)
                client.send(request("POST", "/mutate", review_of(HAMI), JSON))
            assert client.receive().response["allowed"]
            assert _validated(server) - before < CONNECTIONS * ahead / 2
        # Nor is anything left undone.
        for each in tenants:
            for _ in range(ahead):
                assert each.receive().response["allowed"]


def test_what_waits_for_its_turn_does_not_take_all_memory(
    serve: StartServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_share, "MAX_WAITING_BYTES", 100_000)
    server = serve()
    context = authority.client_context()
    sent = request("POST", "/validate", review_of(COSTLY), JSON)
    with held(CONNECTIONS, server.port, context, TENANT, lambda client: client.review(NO_GPU)) as tenants:
        with Client(server.port, context) as client:
            assert client.review(NO_GPU).response["allowed"]
            with _held_up(server):
                for each in tenants:
                    each.send(sent)
                client.send(request("POST", "/mutate", review_of(HAMI), JSON))
            assert client.receive().response["allowed"]
        eventually(lambda: server.faults("out_of_memory") > 0, "the address that has most waiting loses some")
        assert server.review(HAMI).response["allowed"]


def test_unproven_clients_that_ask_without_end_do_not_hold_up_an_api_server(serve: StartServer) -> None:
    api_servers = Authority()
    server = serve(client_authority=ClientAuthority(certificates=api_servers.certificate))
    asked = request("GET", "/readyz") * 200
    with ExitStack() as stack:
        client = stack.enter_context(server.connect_as(api_servers))
        assert client.review(NO_GPU).response["allowed"]
        context = server.authority.client_context()
        unproven = stack.enter_context(held(CONNECTIONS, server.port, context, TENANT, _nothing))
        for each in unproven:
            each.send(asked)
        for _ in range(20):
            assert client.review(HAMI).response["allowed"]
            with server.connect_as(api_servers) as newcomer:
                assert newcomer.review(HAMI).response["allowed"]
        for each in unproven:
            assert each.receive().status == 200


def _validated(server: ServerThread) -> float:
    metrics = server.metrics()
    return sum(value for name, value in metrics.items() if name.startswith("gpuslice_validations_total"))
