"""Tenants that reach the webhook's ports, with many connections, do not keep the API server's from being served."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from gpuslice.http.client_authority import ClientAuthority
from tests.hostile.webhook.flood import connects, held
from tests.webhook.support import HAMI, NO_GPU, Authority, Client, ServerThread, eventually

if TYPE_CHECKING:
    from tests.webhook.conftest import StartServer
    from tests.webhook.support import WebhookProcess

MOST = 64
ROUNDS = 40
API_SERVER = "127.0.0.1"
TENANTS = tuple(f"127.0.0.{number}" for number in range(2, 6))
#: The beginning of a handshake, of which the rest never comes.
HALF_A_HANDSHAKE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.fixture(scope="session")
def api_servers() -> Authority:
    return Authority()


@pytest.fixture
def guarded(serve: StartServer, api_servers: Authority) -> ServerThread:
    return serve(max_connections=MOST, client_authority=ClientAuthority(certificates=api_servers.certificate))


@pytest.mark.parametrize("hello", [b"", HALF_A_HANDSHAKE], ids=["silent", "half a handshake"])
def test_connections_that_posted_a_review_do_not_crowd_out_those_of_another_address(
    serve: StartServer, authority: Authority, hello: bytes
) -> None:
    """No authority is known: a client that posted a review looks like an API server."""
    server = serve(max_connections=MOST)
    context = authority.client_context()
    with (
        held(MOST + 8, server.port, context, TENANTS[0], lambda client: client.review(NO_GPU)),
        connects(server.port, TENANTS[1:3], hello) as count,
        Client(server.port, context) as kept,
    ):
        eventually(lambda: count() > MOST, "the attack has begun")
        for _ in range(ROUNDS):
            assert kept.review(NO_GPU).response["allowed"]
            assert server.review(HAMI).response["allowed"]
        assert server.faults("crowded_out") > 0


@pytest.mark.parametrize("hello", [b"", HALF_A_HANDSHAKE], ids=["silent", "half a handshake"])
def test_an_api_server_with_its_certificate_is_served_whatever_else_connects(
    guarded: ServerThread, api_servers: Authority, hello: bytes
) -> None:
    """Even from one and the same address, as where a node's address stands for all of its pods."""
    context = guarded.authority.client_context()
    known = guarded.authority.client_context(api_servers)
    with (
        guarded.connect_with(known) as kept,
        ExitStack() as stack,
    ):
        assert kept.review(NO_GPU).response["allowed"]
        for tenant in (API_SERVER, *TENANTS):
            stack.enter_context(
                held(MOST // 4, guarded.port, context, tenant, lambda client: client.ask("GET", "/healthz"))
            )
        count = stack.enter_context(connects(guarded.port, TENANTS, hello))
        eventually(lambda: count() > MOST, "the attack has begun")
        for _ in range(ROUNDS):
            assert kept.review(NO_GPU).response["allowed"]
            with guarded.connect_with(known) as client:
                assert client.review(HAMI).response["allowed"]
        assert guarded.faults("crowded_out") > 0


def test_an_api_server_that_came_before_comes_again_though_hundreds_of_addresses_connect(
    guarded: ServerThread, api_servers: Authority
) -> None:
    """No address has more than another, so that its number of connections tells nothing."""
    known = guarded.authority.client_context(api_servers)
    with guarded.connect_with(known) as client:
        assert client.review(NO_GPU).response["allowed"]
    with connects(guarded.port, [f"127.0.{network}.{host}" for network in (1, 2) for host in range(1, 201)]) as count:
        eventually(lambda: count() > 4 * MOST, "the attack has begun")
        for _ in range(ROUNDS):
            with guarded.connect_with(known) as client:
                assert client.review(HAMI).response["allowed"]
    assert guarded.faults("crowded_out") > 0


def test_a_server_that_is_crowded_stops_in_order(new_webhook: WebhookProcess, api_servers: Authority) -> None:
    file = new_webhook.folder / "ca.crt"
    file.write_text(api_servers.certificate)
    webhook = new_webhook.start("--drain", "60s", "--client-authority", str(file))
    with (
        webhook.connect_as(api_servers) as client,
        held(MOST, webhook.port, None, TENANTS[0], lambda each: each.send(HALF_A_HANDSHAKE)),
        connects(webhook.port, TENANTS[1:]) as count,
    ):
        assert client.review(NO_GPU).response["allowed"]
        eventually(lambda: count() > MOST, "the attack has begun")
        webhook.terminate()
        eventually(lambda: webhook.get("/readyz").status == 503, "it stops")
        answer = client.review(NO_GPU)
        assert answer.response["allowed"]
        assert answer.headers["connection"] == "close"
        webhook.terminate()  # once more: it need not wait any longer
        assert webhook.wait() == 0


def test_unproven_clients_have_a_small_share_and_displace_no_connection_of_an_api_server(
    guarded: ServerThread, api_servers: Authority
) -> None:
    known = guarded.authority.client_context(api_servers)
    with held(MOST // 2, guarded.port, known, API_SERVER, lambda client: client.review(NO_GPU)) as clients:
        with held(MOST, guarded.port, None, TENANTS[0], lambda _: None):
            eventually(lambda: guarded.faults("crowded_out") >= MOST // 2, "unproven connections are dropped")
            connections = guarded.metrics()["gpuslice_webhook_connections"]
            assert connections <= MOST + 1  # with the one that reads the metrics
            assert guarded.metrics()["gpuslice_webhook_authenticated_connections"] == MOST // 2
        for client in clients:
            assert client.review(NO_GPU).response["allowed"]


def test_probes_are_answered_though_tenants_hang_on_the_port_for_metrics(serve: StartServer) -> None:
    """Else the kubelet would end the webhook."""
    server = serve()
    with (
        held(100, server.metrics_port, None, TENANTS[0], lambda client: client.ask("GET", "/healthz")),
        connects(server.metrics_port, TENANTS[1:3]) as count,
    ):
        eventually(lambda: count() > 100, "the attack has begun")
        for _ in range(ROUNDS):
            assert server.get("/healthz").status == 200
            assert server.get("/readyz").status == 200
