"""What a well-behaved client gets."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.admission.making import container, pod, policy, review_of
from tests.webhook.support import CASTSLICE, HAMI, JSON, MALFORMED, NO_GPU, UID, Client, request

if TYPE_CHECKING:
    from tests.webhook.support import ServerThread, WebhookProcess

POLICY_KIND = {"group": "gpuslice.io", "version": "v1alpha1", "kind": "SlicePolicy"}


def test_a_pod_is_rewritten(webhook: WebhookProcess) -> None:
    response = webhook.review(CASTSLICE, "/mutate?timeout=3s").response
    assert response["uid"] == UID
    patch = json.loads(base64.b64decode(response["patch"]))
    assert {"op": "add", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu-shared", "value": "1"} in patch


def test_policies_from_a_file_are_in_force(new_webhook: WebhookProcess) -> None:
    file = new_webhook.folder / "policy.json"
    file.write_text(json.dumps(policy({"name": "small", "maximum": {"memory": "1Mi"}})))
    new_webhook.start("--policies", str(file))
    status = new_webhook.review(HAMI).response["status"]
    assert "at most 1Mi is allowed (policy test/small)" in status["message"]


def test_a_malformed_request_is_refused_by_both_webhooks(server: ServerThread) -> None:
    for path in ("/mutate", "/validate"):
        response = server.review(MALFORMED, path).response
        assert not response["allowed"]
        assert response["status"]["code"] == 422
        assert "150 is neither" in response["status"]["message"]


@pytest.mark.parametrize("asked", [HAMI, CASTSLICE, NO_GPU])
def test_the_validator_lets_the_rest_pass_as_it_is(server: ServerThread, asked: dict[str, object]) -> None:
    assert server.review(asked, "/validate").response == {"uid": UID, "allowed": True}


def test_a_policy_that_makes_no_sense_is_refused_when_it_is_written(server: ServerThread) -> None:
    rule = {"name": "a", "maximum": {"memory": "1Gi"}, "defaults": {"memory": "2Gi"}}
    for operation in ("CREATE", "UPDATE"):
        response = server.review(policy(rule), "/validate-policy", kind=POLICY_KIND, operation=operation).response
        assert not response["allowed"]
        complaint = "spec.rules[0].defaults.memory: is above maximum.memory, so no pod could have it"
        assert response["status"]["message"] == f"gpuslice: SlicePolicy test: {complaint}"


def test_a_limit_that_no_hostile_tenant_minds_is_warned_about(server: ServerThread) -> None:
    limiting = {"name": "a", "maximum": {"memory": "1Gi"}}
    spoken = {
        "Admit": _unreviewed(policy(limiting, {"name": "b"}), "Admit"),
        "Refuse": _unreviewed(policy(limiting), "Refuse"),
        "left out": policy(limiting),
        "no limit": _unreviewed(policy({"name": "a"}), "Admit"),
    }
    found = {}
    for name, document in spoken.items():
        response = server.review(document, "/validate-policy", kind=POLICY_KIND).response
        assert response["allowed"]
        found[name] = response.get("warnings", [])
    (warning,) = found.pop("Admit")
    assert warning.startswith("gpuslice: spec.whenUnreviewed: Admit limits no hostile tenant")
    assert len(warning) <= 256
    assert not any(found.values())


def _unreviewed(document: dict[str, Any], what: str) -> dict[str, Any]:
    return document | {"spec": document["spec"] | {"whenUnreviewed": what}}


def test_a_policy_with_a_broken_expression_is_refused(server: ServerThread) -> None:
    broken = policy({"name": "a", "match": {"expression": "object.spec ="}})
    response = server.review(broken, "/validate-policy", kind=POLICY_KIND).response
    assert "spec.rules[0].match.expression" in response["status"]["message"]


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        (policy({"name": "a"}), {"kind": POLICY_KIND}),
        (None, {"kind": POLICY_KIND, "operation": "DELETE"}),
        (policy(), {"kind": POLICY_KIND, "subResource": "status"}),
        (NO_GPU, {}),
    ],
)
def test_other_reviews_of_policies_pass(
    server: ServerThread, document: dict[str, object], fields: dict[str, object]
) -> None:
    assert server.review(document, "/validate-policy", **fields).response["allowed"]


@pytest.mark.parametrize("document", [None, [], "policy", {"metadata": []}])
def test_a_policy_that_is_no_object_is_refused(server: ServerThread, document: dict[str, object]) -> None:
    assert not server.review(document, "/validate-policy", kind=POLICY_KIND).response["allowed"]


def test_a_connection_serves_many_requests(server: ServerThread) -> None:
    with server.connect() as client:
        for number in range(50):
            answer = client.review(CASTSLICE, uid=f"number-{number}")
            assert answer.response["uid"] == f"number-{number}"
            assert "connection" not in answer.headers


def test_requests_sent_ahead_are_answered_in_order(server: ServerThread) -> None:
    count = 200
    with server.connect() as client:
        client.send(
            b"".join(
                request("POST", "/mutate", review_of(HAMI if number % 3 else NO_GPU, uid=str(number)), JSON)
                for number in range(count)
            )
        )
        assert [client.receive().response["uid"] for _ in range(count)] == [str(number) for number in range(count)]


def test_a_request_may_come_byte_by_byte(server: ServerThread) -> None:
    with server.connect() as client:
        for byte in request("POST", "/mutate", review_of(NO_GPU), JSON):
            client.send(bytes([byte]))
        assert client.receive().response["allowed"]


def test_a_body_may_come_in_chunks(server: ServerThread) -> None:
    body = review_of(CASTSLICE)
    head = b"POST /mutate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    pieces = [body[start : start + 100] for start in range(0, len(body), 100)]
    chunks = b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    with server.connect() as client:
        client.send(head + chunks + b"0\r\nContent-Type: text/plain\r\n\r\n")
        assert "patch" in client.receive().response
        assert client.review(NO_GPU).response["allowed"]


def test_a_client_that_asks_before_sending_a_body_may_go_on(server: ServerThread) -> None:
    whole = request("POST", "/mutate", review_of(NO_GPU), JSON | {"Expect": "100-continue"})
    head, _, body = whole.partition(b"\r\n\r\n")
    with server.connect() as client:
        client.send(head + b"\r\n\r\n")
        assert client.receive().status == 100
        client.send(body)
        assert client.receive().response["allowed"]


def test_a_client_that_wants_no_further_answers_gets_none(server: ServerThread) -> None:
    with server.connect() as client:
        client.send(request("POST", "/mutate", review_of(NO_GPU), JSON | {"Connection": "close"}))
        assert client.receive().headers["connection"] == "close"
        assert client.rest() == b""
    with server.connect() as client:
        client.send(request("GET", "/healthz").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert client.receive().headers["connection"] == "close"
        assert client.rest() == b""


def test_an_answer_comes_though_the_client_says_that_it_sends_no_more(server: ServerThread) -> None:
    with server.plain() as client:
        client.send(request("GET", "/healthz"))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive().status == 200


def test_both_ports_tell_of_health(server: ServerThread) -> None:
    for client in (server.connect(), server.plain()):
        with client:
            assert (client.ask("GET", "/healthz").status, client.ask("GET", "/readyz").status) == (200, 200)
            head = client.ask("GET", "/readyz")
            assert head.text == "ok\n"


def test_a_head_request_gets_no_body(server: ServerThread) -> None:
    with server.plain() as client:
        client.send(request("HEAD", "/healthz") + request("GET", "/healthz"))
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 2 or not received.endswith(b"ok\n"):
            received += client.socket.recv(4096)
        assert received.count(b"ok\n") == 1


def test_modern_tls_is_spoken(server: ServerThread) -> None:
    context = server.authority.client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with Client(server.port, context) as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        assert client.socket.version() == "TLSv1.3"
        assert client.socket.selected_alpn_protocol() == "http/1.1"
        assert client.review(NO_GPU).response["allowed"]
        assert client.socket.session is None or not client.socket.session.has_ticket, "nothing is kept of a session"


def test_old_tls_is_not(server: ServerThread) -> None:
    """TLS 1.2 has clients negotiate again, and servers remember sessions, as often as clients like."""
    context = server.authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        Client(server.port, context)


def test_a_decision_has_a_line_in_the_log_and_a_pod_without_one_has_none(webhook: WebhookProcess) -> None:
    webhook.review(NO_GPU)
    webhook.review(MALFORMED, name="wrong")
    workload = pod(container(limits={"nvidia.com/gpumem": 1000}))
    workload["metadata"] = {"generateName": "train-"}
    webhook.review(workload, uid="of-a-workload")
    webhook.review(pod(container(limits={"gpuslice.io/cores": 10})))
    webhook.terminate()
    assert webhook.wait() == 0
    denied, rewritten, warned = webhook.events("decided")
    assert "no other slice fits beside it" in warned["warnings"][0], "a controller does not show warnings"
    assert (denied["pod"], denied["outcome"]) == ("wrong", "denied")
    assert "150 is neither" in denied["message"]
    assert rewritten.pop("milliseconds") > 0
    assert rewritten.pop("timestamp")
    assert rewritten == {
        "level": "info",
        "event": "decided",
        "uid": "of-a-workload",
        "namespace": "team",
        "pod": "train-...",
        "dialect": "hami",
        "outcome": "rewritten",
        "policy": "none",
    }
