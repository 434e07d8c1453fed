"""Requests that are wrong: each gets a clear answer or a closed connection, and the next one is served."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpuslice.http.connection import Limits
from gpuslice.http.requests import MAX_HEAD_BYTES
from tests.unit.admission.making import container, pod, review_of
from tests.webhook.support import CASTSLICE, HAMI, JSON, NO_GPU, UID, Client, request

if TYPE_CHECKING:
    from tests.webhook.conftest import StartServer
    from tests.webhook.support import ServerThread

MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize("path", ["/mutate", "/validate", "/validate-policy"])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not an AdmissionReview"),
        (b"no JSON", "not an AdmissionReview"),
        (b"\xff\xfe\x00", "not an AdmissionReview"),
        (b"[" * 100_000, "not an AdmissionReview"),
        (b'{"a":' * 100_000, "not an AdmissionReview"),
        (review_of(NO_GPU).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"), "admissionReviewVersions"),
        (review_of(NO_GPU).replace(b'"AdmissionReview"', b'"Pod"'), "is a 'Pod'"),
        (review_of(NO_GPU, uid=""), "request.uid is empty"),
        (json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}).encode(), "request"),
    ],
)
def test_what_is_no_review_is_a_bad_request(server: ServerThread, path: str, body: bytes, reason: str) -> None:
    with server.connect() as client:
        answer = client.ask("POST", path, body, JSON)
        assert (answer.status, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8")
        assert answer.text.startswith("gpuslice: ")
        assert reason in answer.text
        assert client.review(NO_GPU).response["allowed"]


def test_deep_nesting_in_a_pod_is_answered(server: ServerThread) -> None:
    nested = review_of(HAMI).replace(b'"spec"', b'"x": ' + b"[" * 500_000 + b"]" * 500_000 + b', "spec"')
    with server.connect() as client:
        assert client.ask("POST", "/mutate", nested, JSON).status in (200, 400)
        assert client.review(NO_GPU).response["allowed"]


def test_a_pod_of_three_mebibytes_is_rewritten(server: ServerThread) -> None:
    large = pod(container(limits={"nvidia.com/gpumem": 1000}), annotations={"note": "x" * 3 * MEBIBYTE})
    assert "patch" in server.review(large).response


@pytest.mark.parametrize("path", ["/mutate", "/validate"])
def test_ten_thousand_containers_are_answered(server: ServerThread, path: str) -> None:
    crowd = pod(*(container(f"c{number}", {"nvidia.com/gpumem": 1000}) for number in range(10_000)))
    with server.connect() as client:
        client.send(request("POST", path, review_of(crowd), JSON))
        # The others do not wait for it.
        assert server.review(CASTSLICE).response["allowed"]
        response = client.receive().response
        assert response["allowed"] is (path == "/validate")
        assert response["allowed"] or "has 10000 containers" in response["status"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_above_the_limit_is_refused_and_the_client_hears_why(serve: StartServer, chunked: bool) -> None:  # noqa: FBT001 - a parameter
    server = serve(limits=Limits(body_bytes=100_000))
    assert server.review(review_of(NO_GPU) + b" " * 50_000).response["allowed"]
    with server.connect() as client:
        client.send(_large(b"[" + b" " * 5 * MEBIBYTE, chunked=chunked))
        answer = client.receive()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert "longer than 100000 bytes" in answer.text
        assert client.rest() == b""
    assert server.faults("body_too_large") == 1
    assert server.review(NO_GPU).response["allowed"]


@pytest.mark.parametrize("path", ["/mutate", "/validate", "/validate-policy"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_review_above_the_limit_is_denied(serve: StartServer, path: str, chunked: bool) -> None:  # noqa: FBT001 - a parameter
    # With any other answer the failurePolicy would decide, and let the pod pass.
    server = serve(limits=Limits(body_bytes=100_000))
    with server.connect() as client:
        client.send(_large(review_of(HAMI) + b" " * 5 * MEBIBYTE, path, chunked=chunked))
        answer = client.receive()
        assert answer.headers["connection"] == "close"
        response = answer.response
        assert (response["uid"], response["allowed"], response["status"]["code"]) == (UID, False, 413)
        assert "longer than 100000 bytes" in response["status"]["message"]
        assert client.rest() == b""
    assert server.faults("body_too_large") == 1
    assert server.review(HAMI).response["allowed"]


def _large(body: bytes, path: str = "/mutate", *, chunked: bool) -> bytes:
    if chunked:
        head = (
            b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            % path.encode()
        )
        return head + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    return request("POST", path, body, JSON)


def test_a_client_that_asks_before_sending_too_much_is_refused(serve: StartServer) -> None:
    server = serve(limits=Limits(body_bytes=1000))
    with server.connect() as client:
        client.send(request("POST", "/mutate", b"", JSON | {"Expect": "100-continue", "Content-Length": "100000"}))
        assert client.receive().status == 413


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\n" + b"X-Long: " + b"a" * 2 * MAX_HEAD_BYTES,
        b"GET /healthz HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % number for number in range(20_000)),
        b"GET /" + b"a" * 2 * MAX_HEAD_BYTES,
    ],
    ids=["one long", "many short", "long path"],
)
def test_headers_above_the_limit_are_refused(server: ServerThread, head: bytes) -> None:
    with server.connect() as client:
        client.send(head)
        assert client.receive().status == 431
        assert client.rest() == b""


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/", JSON, 404),
        ("POST", "/mutate/", JSON, 404),
        ("POST", "/metrics", JSON, 404),
        ("GET", "/mutate", {}, 405),
        ("PUT", "/mutate", JSON, 405),
        ("POST", "/healthz", JSON, 405),
        ("POST", "/mutate", {}, 415),
        ("POST", "/mutate", {"Content-Type": "text/plain"}, 415),
    ],
)
def test_a_wrong_method_path_or_type_is_told_on_a_connection_that_goes_on(
    server: ServerThread, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    with server.connect() as client:
        answer = client.ask(method, path, review_of(NO_GPU), headers)
        assert answer.status == status
        assert answer.text.startswith("gpuslice: ")
        assert ("allow" in answer.headers) == (status == 405)
        assert client.review(NO_GPU).response["allowed"]


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\nhello\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /mutate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"GET /healthz HTTP/1.1\r\nBad Header: 1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x00\x00",
        b"\x00" * 100,
    ],
)
def test_what_is_no_http_ends_the_connection_with_a_reason(server: ServerThread, data: bytes) -> None:
    with server.connect() as client:
        client.send(data)
        answer = client.receive()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert client.rest() == b""


def test_what_came_before_the_nonsense_is_answered(server: ServerThread) -> None:
    with server.connect() as client:
        client.send(request("POST", "/mutate", review_of(HAMI), JSON) + b"nonsense\r\n\r\n")
        assert "patch" in client.receive().response
        assert client.receive().status == 400


@pytest.mark.parametrize(
    "data", [b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", b"\x00" * 64, b"SSH-2.0-OpenSSH_9.2\r\n"]
)
def test_a_client_without_tls_is_cut_off_at_once(server: ServerThread, data: bytes) -> None:
    with Client(server.port) as client:
        client.send(data)
        assert b"HTTP/1.1 200" not in client.rest()
    assert server.faults("not_tls") == 1


def test_a_flood_of_requests_sent_ahead_is_cut_off(server: ServerThread) -> None:
    with server.plain() as client:
        client.send(b"GET / HTTP/1.1\r\n\r\n" * 800)
        statuses = [answer.split(b" ")[0] for answer in client.rest().split(b"HTTP/1.1 ")[1:]]
        assert statuses[-1] == b"429"
        assert set(statuses[:-1]) == {b"404"}
