"""How a webhook ends: no request is lost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.unit.admission.making import review_of
from tests.webhook.support import CASTSLICE, JSON, NO_GPU, Authority, Client, WebhookProcess, eventually, request

if TYPE_CHECKING:
    import ssl
    from pathlib import Path


def test_a_webhook_that_is_told_to_stop_is_not_ready_but_answers(new_webhook: WebhookProcess) -> None:
    new_webhook.start("--drain", "60s")
    with new_webhook.connect() as used, new_webhook.connect() as unused:
        assert used.review(NO_GPU).headers.get("connection") is None
        new_webhook.terminate()
        eventually(lambda: new_webhook.get("/readyz").status == 503, "it is not ready")
        assert new_webhook.get("/healthz").status == 200
        for client in (used, unused):
            answer = client.review(CASTSLICE)
            assert "patch" in answer.response
            assert answer.headers["connection"] == "close"
            assert client.rest() == b""
        # Newcomers, too: not every API server has heard of it.
        assert new_webhook.review(CASTSLICE).headers["connection"] == "close"
    new_webhook.terminate()  # again: no more waiting
    assert new_webhook.wait() == 0
    assert [event["unfinished"] for event in new_webhook.events("stopped")] == [0]


def test_idle_connections_do_not_keep_it_and_are_closed_in_order(new_webhook: WebhookProcess) -> None:
    new_webhook.start("--drain", "100ms")
    with new_webhook.connect() as idle:
        assert idle.review(NO_GPU).response["allowed"]
        new_webhook.terminate()
        assert idle.socket.recv(1) == b""
        assert new_webhook.wait() == 0


def test_a_request_under_way_is_answered(new_webhook: WebhookProcess) -> None:
    new_webhook.start("--drain", "0")
    whole = request("POST", "/mutate", review_of(CASTSLICE), JSON)
    with new_webhook.connect() as client:
        client.send(whole[:-1])
        eventually(lambda: new_webhook.metrics()["gpuslice_webhook_requests_in_flight"] == 1, "it has begun")
        new_webhook.terminate()
        eventually(lambda: new_webhook.events("stopping"), "it stops")
        client.send(whole[-1:])
        assert "patch" in client.receive().response
    assert new_webhook.wait() == 0


class _ApiServer:
    """Asks without pause on a connection that it keeps, and takes a new one only when the old one was closed while
    it was idle: as an API server does, it never asks twice.
    """

    def __init__(self, port: int, context: ssl.SSLContext, stop: threading.Event) -> None:
        self._port = port
        self._context = context
        self._stop = stop
        self.answered = 0
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        client: Client | None = None
        while not self._stop.is_set():
            try:
                if client is not None and client.is_closed():
                    client.close()
                    client = None
                if client is None:
                    client = Client(self._port, self._context)
                answer = client.review(CASTSLICE)
                assert answer.response["allowed"]
                self.answered += 1
                if "connection" in answer.headers:
                    client.close()
                    client = None
            except (OSError, AssertionError) as error:
                self.failures.append(repr(error))
                client = None
        if client is not None:
            client.close()


def test_webhooks_replaced_in_turn_under_load_lose_no_request(
    gpuslice_command: Path, authority: Authority, tmp_path: Path
) -> None:
    stop = threading.Event()
    webhooks = [WebhookProcess(gpuslice_command, authority, tmp_path / str(number)) for number in range(4)]
    clients: list[_ApiServer] = []
    try:
        current, *following = webhooks
        current.start("--drain", "500ms")
        clients = [_ApiServer(current.port, authority.client_context(), stop) for _ in range(6)]
        for following_one in following:
            following_one.start("--drain", "500ms", port=current.port, metrics_port=current.metrics_port)
            before = sum(client.answered for client in clients)
            current.terminate()
            assert current.wait() == 0
            eventually(
                lambda before=before: sum(client.answered for client in clients) > before + 50,  # type: ignore[misc]
                "the new one serves",
            )
            current = following_one
    finally:
        stop.set()
        for client in clients:
            client.join()
        for webhook in webhooks:
            webhook.end()
    assert [failure for client in clients for failure in client.failures] == []
    answered = sum(client.answered for client in clients)
    decided = [len(webhook.events("decided")) for webhook in webhooks[:-1]]
    assert all(decided), "each of them has served"
    assert answered >= sum(decided)
