"""Any pod reaches the agent's metrics; only an account that may read them sees the names in them."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.node.conftest import claim_server, folder, make_kubernetes_node
from tests.node.kubelet import Share
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from tests.node.conftest import MakeKubernetesNode
    from tests.node.kubernetes_node import KubernetesNode

__all__ = ["claim_server", "folder", "make_kubernetes_node"]  # fixtures of tests/node

CONNECTIONS = 200


@pytest.fixture
def node(make_kubernetes_node: MakeKubernetesNode) -> KubernetesNode:
    made = make_kubernetes_node(options=["--metrics", "127.0.0.1:0"])
    made.api.accounts = {
        "scraper": "system:serviceaccount:monitoring:prometheus",
        "tenant": "system:serviceaccount:a:b",
    }
    made.api.allowed = {("system:serviceaccount:monitoring:prometheus", "/metrics", "get")}
    made.kubelet.prepared(made.claim("secret-project", Share(made.device(), memory="64Mi")))
    return made


@pytest.fixture
def port(node: KubernetesNode) -> int:
    return node.agent.metrics_port


def get(port: int, authorization: str | None = None, path: str = "/metrics") -> tuple[int, str]:
    headers = {} if authorization is None else {"Authorization": authorization}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310 - our own
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("authorization", "expected"),
    [(None, 401), ("Bearer", 401), ("Bearer ", 401), ("Basic scraper", 401), ("Bearer forged", 401),
     ("Bearer tenant", 403), ("Bearer " + "x" * 60_000, 401)],
)  # fmt: skip
def test_others_see_nothing(port: int, authorization: str | None, expected: int) -> None:
    status, text = get(port, authorization)
    assert status == expected
    assert "secret-project" not in text
    assert "gpuslice_" not in text


def test_a_scraper_s_token_is_reviewed_once_a_minute(node: KubernetesNode, port: int) -> None:
    for _ in range(5):
        status, text = get(port, "Bearer scraper")
        assert (status, "secret-project" in text) == (200, True)
    assert node.api.token_reviews == 1


def test_a_flood_of_forged_tokens_is_no_flood_of_the_api_server(node: KubernetesNode, port: int) -> None:
    assert get(port, "Bearer scraper")[0] == 200
    answers = [get(port, f"Bearer forged-{number}")[0] for number in range(100)]
    assert set(answers) <= {401, 429}
    assert 429 in answers
    assert node.api.token_reviews < 100
    assert get(port, "Bearer scraper")[0] == 200


def test_without_the_api_server_no_client_sees_anything(node: KubernetesNode, port: int) -> None:
    node.api.decides = False
    assert get(port, "Bearer scraper")[0] == 503
    assert get(port, path="/healthz") == (200, "ok\n")


@pytest.mark.usefixtures("node")
def test_health_needs_no_token_and_connections_that_say_nothing_are_let_go(port: int) -> None:
    assert get(port, path="/healthz") == (200, "ok\n")
    assert get(port, path="/")[0] == 404
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    try:
        eventually(lambda: answers(port))
    finally:
        for connection in silent:
            connection.close()


def answers(port: int) -> bool:
    try:
        return get(port, path="/healthz")[0] == 200
    except OSError:
        return False


def test_open_metrics_are_a_choice(make_kubernetes_node: MakeKubernetesNode) -> None:
    made = make_kubernetes_node(options=["--metrics", "127.0.0.1:0", "--metrics-access", "open"])
    status, text = get(made.agent.metrics_port)
    assert (status, "gpuslice_gpu_healthy" in text) == (200, True)
    assert made.api.token_reviews == 0
