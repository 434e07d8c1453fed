"""Which callers are API servers: those with a certificate of the authority that the server was given."""

from __future__ import annotations

import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpuslice.http.client_authority import ClientAuthority
from gpuslice.http.serving_certificate import CertificateError, ServingCertificate
from tests.webhook.support import HAMI, JSON, NO_GPU, Authority, ServerThread, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.webhook.conftest import StartServer
    from tests.webhook.support import WebhookProcess

OPEN_TO_ALL = "reviews are taken from all who reach the port: no --client-authority tells API servers from others"
DAMAGED = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
PATHS = ("/mutate", "/validate", "/validate-policy")


@pytest.fixture(scope="session")
def api_servers() -> Authority:
    """Signs the certificates of API servers."""
    return Authority()


@pytest.fixture
def server(serve: StartServer, api_servers: Authority) -> ServerThread:
    return serve(client_authority=ClientAuthority(certificates=api_servers.certificate))


def test_an_api_server_with_its_certificate_is_reviewed(server: ServerThread, api_servers: Authority) -> None:
    with server.connect_as(api_servers) as client:
        assert client.review(HAMI).response["allowed"]
        assert client.review(NO_GPU, "/validate").response["allowed"]


@pytest.mark.parametrize("path", PATHS)
def test_a_review_without_a_certificate_is_refused_before_it_is_read(server: ServerThread, path: str) -> None:
    with server.connect() as client:
        answer = client.review(HAMI, path)
        assert (answer.status, answer.headers["connection"]) == (403, "close")
        assert "client certificate" in answer.text
        assert client.rest() == b""
    with server.connect() as client:
        client.send(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" % path.encode())
        assert client.receive().status == 403, "its body is not waited for"
    assert server.faults("unauthenticated") == 2
    assert server.metrics()["castslice_requests_total"] == 0


def test_a_probe_needs_no_certificate(server: ServerThread) -> None:
    with server.connect() as client:
        assert client.ask("GET", "/healthz").status == 200
        assert client.ask("GET", "/readyz").status == 200


def test_a_certificate_of_another_authority_ends_with_the_handshake(server: ServerThread) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)), server.connect_as(Authority()) as client:
        client.review(NO_GPU)
    eventually(lambda: server.faults("client_certificate") == 1, "it is counted")


def test_a_certificate_for_serving_alone_does_not_make_an_api_server(serve: StartServer, authority: Authority) -> None:
    """As a node's, signed by the authority of the whole cluster, may be."""
    server = serve(client_authority=ClientAuthority(certificates=authority.certificate))
    context = authority.client_context()
    authority.use_for_serving(context)
    with pytest.raises((ssl.SSLError, ConnectionError)), server.connect_with(context) as client:
        client.review(NO_GPU)
    eventually(lambda: server.faults("client_certificate") == 1, "it is counted")


def test_only_certificates_of_a_name_count_if_one_is_given(serve: StartServer, api_servers: Authority) -> None:
    names = frozenset({"kube-apiserver"})
    server = serve(client_authority=ClientAuthority(certificates=api_servers.certificate, names=names))
    with server.connect_as(api_servers, "kube-apiserver") as client:
        assert client.review(NO_GPU).response["allowed"]
    with server.connect_as(api_servers, "tenant") as client:
        assert client.review(NO_GPU).status == 403


def test_a_new_authority_counts_for_new_connections(server: ServerThread, api_servers: Authority) -> None:
    other = Authority()
    both = ClientAuthority(certificates=api_servers.certificate + other.certificate)
    server.call(lambda: server.identity.set_client_authority(both))
    with server.connect_as(other) as client:
        assert client.review(NO_GPU).response["allowed"]
    with server.connect_as(api_servers) as client:
        assert client.review(NO_GPU).response["allowed"]


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_an_authority_that_is_none_is_not_taken(authority: Authority, api_servers: Authority, text: str) -> None:
    identity = ServingCertificate()
    with pytest.raises(CertificateError, match="authority cannot be used"):
        identity.set_client_authority(ClientAuthority(certificates=text))
    assert identity.client_authority is None
    identity.set_certificate(*authority.issue())
    identity.set_client_authority(ClientAuthority(certificates=api_servers.certificate))
    with pytest.raises(CertificateError, match="authority cannot be used"):
        identity.set_client_authority(ClientAuthority(certificates=text))
    assert identity.client_authority is not None
    assert identity.context.verify_mode is ssl.CERT_OPTIONAL


def test_a_server_without_an_authority_serves_all_and_says_that_it_does(serve: StartServer) -> None:
    server = serve()
    with server.connect() as client:
        assert client.ask("POST", "/mutate", b"{}", JSON).status == 400
        assert client.review(NO_GPU).response["allowed"]
    assert server.metrics()["gpuslice_webhook_authenticates_callers"] == 0


def test_a_server_with_an_authority_shows_it(server: ServerThread) -> None:
    assert server.metrics()["gpuslice_webhook_authenticates_callers"] == 1


def test_the_command_takes_the_authority_from_a_file_that_may_come_later(
    new_webhook: WebhookProcess, api_servers: Authority
) -> None:
    file = new_webhook.folder / "client-authority" / "ca.crt"
    file.parent.mkdir()
    webhook = new_webhook.start("--drain", "0", "--client-authority", str(file), "--client-name", "kube-apiserver")
    assert webhook.review(NO_GPU).response["allowed"]
    eventually(lambda: [line["level"] for line in webhook.events(OPEN_TO_ALL)] == ["warning"], "it says so, once")
    with webhook.connect() as before:
        assert before.review(NO_GPU).response["allowed"]
        file.write_text(api_servers.certificate)
        eventually(lambda: webhook.metrics()["gpuslice_webhook_authenticates_callers"] == 1, "it is taken")
        eventually(before.is_closed, "who was not asked for a certificate comes again")
    with webhook.connect() as client:
        assert client.review(NO_GPU).status == 403
    with webhook.connect_as(api_servers) as client:
        assert client.review(NO_GPU).response["allowed"]
        file.unlink()
        eventually(lambda: webhook.events("client authority not changed"), "its loss is logged")
    with webhook.connect() as client:
        assert client.review(NO_GPU).status == 403, "what was in force is in force"
    eventually(lambda: webhook.events("connections dropped"), "refusals are in the log")
    (line,) = webhook.events("connections dropped")
    assert (line["level"], line["reason"], line["most"]) == ("warning", "unauthenticated", {"127.0.0.1": line["count"]})


@pytest.mark.parametrize(("text", "said"), [("nonsense", "authority cannot be used"), (None, "cannot be read")])
def test_the_command_does_not_start_with_an_authority_that_is_none(
    gpuslice_command: Path, authority: Authority, tmp_path: Path, text: str | None, said: str
) -> None:
    certificate, key = authority.write(tmp_path)
    file = tmp_path / "missing" / "ca.crt" if text is None else tmp_path / "ca.crt"
    if text is not None:
        file.write_text(text)
    options = ("--certificate", certificate, "--key", key, "--client-authority", file)
    done = subprocess.run([gpuslice_command, "webhook", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert str(file) in done.stderr


def test_a_client_name_needs_an_authority(gpuslice_command: Path) -> None:
    options = ("--certificate", "a", "--key", "b", "--client-name", "kube-apiserver")
    done = subprocess.run([gpuslice_command, "webhook", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "give --client-authority as well" in done.stderr
