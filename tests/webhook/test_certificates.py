"""Certificates: which one a new connection gets, and that open ones keep theirs."""

from __future__ import annotations

import datetime as dt
import ssl
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.http.serving_certificate import CertificateError, ServingCertificate
from tests.webhook.support import NO_GPU, Authority, Client, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.webhook.support import ServerThread, WebhookProcess

_KEY = ec.generate_private_key(ec.SECP256R1())
_KEY_PEM = _KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)


def certificate_until(end: dt.datetime, *extensions: x509.ExtensionType) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x" * 60)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(_KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - dt.timedelta(days=1))
        .not_valid_after(end)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(_KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def shown(client: Client) -> bytes:
    assert isinstance(client.socket, ssl.SSLSocket)
    found = client.socket.getpeercert(binary_form=True)
    assert found is not None
    return found


def leaf(path: Path) -> bytes:
    return x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(serialization.Encoding.DER)


def is_shown(webhook: WebhookProcess, wanted: bytes) -> bool:
    with webhook.connect() as client:
        return shown(client) == wanted


def test_changed_files_are_taken_and_no_connection_is_dropped(webhook: WebhookProcess) -> None:
    before = leaf(webhook.certificate)
    with webhook.connect() as old:
        assert old.review(NO_GPU).response["allowed"]
        webhook.authority.write(webhook.folder)
        after = leaf(webhook.certificate)
        assert after != before
        eventually(lambda: is_shown(webhook, after), "new connections get the new certificate")
        assert old.review(NO_GPU).response["allowed"]
        assert shown(old) == before


def test_a_secret_mount_that_swaps_its_link_is_followed(new_webhook: WebhookProcess) -> None:
    folder = new_webhook.folder
    for version in ("first", "second"):
        new_webhook.authority.write(folder / version)
    (folder / "data").symlink_to("first")
    for name in ("tls.crt", "tls.key"):
        (folder / name).symlink_to(f"data/{name}")
    new_webhook.start("--drain", "0")
    assert is_shown(new_webhook, leaf(folder / "first/tls.crt"))
    (folder / "next").symlink_to("second")
    (folder / "next").rename(folder / "data")
    eventually(lambda: is_shown(new_webhook, leaf(folder / "second/tls.crt")), "the swapped files are served")


@pytest.mark.parametrize("how", ["mismatched", "empty", "nonsense", "missing"])
def test_a_pair_that_cannot_be_used_does_not_replace_one_that_can(
    webhook: WebhookProcess, authority: Authority, tmp_path: Path, how: str
) -> None:
    before = leaf(webhook.certificate)
    if how == "mismatched":
        webhook.key.write_bytes(authority.issue()[1])
    elif how == "missing":
        webhook.key.unlink()
    else:
        webhook.key.write_bytes(b"" if how == "empty" else b"nonsense")
    eventually(lambda: webhook.events("certificate not changed"), "the log tells")
    assert "tls.key" in webhook.events("certificate not changed")[0]["reason"]
    assert is_shown(webhook, before)
    assert webhook.get("/readyz").status == 200
    authority.write(tmp_path)
    eventually(lambda: is_shown(webhook, leaf(webhook.certificate)), "a good pair is taken again")


def test_the_metrics_tell_when_the_certificate_ends(server: ServerThread) -> None:
    end = dt.datetime(2031, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
    server.identity.set_certificate(certificate_until(end), _KEY_PEM)
    assert server.metrics()["gpuslice_webhook_certificate_expiry_timestamp_seconds"] == end.timestamp()
    server.identity.set_certificate(*server.authority.issue())


@given(st.datetimes(dt.datetime(1951, 1, 1), dt.datetime(2200, 1, 1)))  # noqa: DTZ001 - as cryptography has it
def test_the_end_of_any_certificate_is_read(end: dt.datetime) -> None:
    end = end.replace(microsecond=0, tzinfo=dt.UTC)
    identity = ServingCertificate()
    identity.set_certificate(b"a comment\n" + certificate_until(end), _KEY_PEM)
    assert identity.expires == end.timestamp()


def test_a_certificate_that_clients_refuse_from_a_server_is_an_error() -> None:
    end = dt.datetime(2031, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
    for_clients = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    identity = ServingCertificate()
    with pytest.raises(CertificateError, match="purpose"):
        identity.set_certificate(certificate_until(end, for_clients), _KEY_PEM)
    assert not identity.loaded


_WHOLE = certificate_until(dt.datetime(2031, 1, 1, tzinfo=dt.UTC))


@given(st.data())
def test_a_damaged_certificate_is_an_error_and_nothing_else(data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(_WHOLE) - 1))
    rest = _WHOLE[position + data.draw(st.integers(0, 400)) :]
    damaged = _WHOLE[:position] + data.draw(st.binary(max_size=8)) + rest
    identity = ServingCertificate()
    try:
        identity.set_certificate(damaged, _KEY_PEM)
    except CertificateError:
        assert not identity.loaded
    else:
        assert identity.loaded
