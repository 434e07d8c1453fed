"""Keys and certificates of a cluster: one authority that serving and client certificates come from."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

#: A cluster for trying things out is thrown away long before.
_LIFETIME: Final = dt.timedelta(days=365)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a folder. Made anew or opened, if the folder has one already."""

    def __init__(self, folder: Path, name: str = "gpuslice-cluster") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.certificate: Final = folder / "ca.crt"
        key_file = folder / "ca.key"
        if self.certificate.exists() and key_file.exists():
            key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            self._key = key
            self._authority = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name, ())
        builder = _builder(subject, subject, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self._authority = builder.sign(self._key, hashes.SHA256())
        _write_key(key_file, self._key)
        self.certificate.write_bytes(self._authority.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, common_name: str, groups: Iterable[str] = (), hosts: Iterable[str] = ()) -> Pair:
        """A certificate for a client and, if there are hosts, for a server of these names and addresses."""
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        if pair.certificate.exists():
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_host(host) for host in hosts]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if names else [])]
        builder = (
            _builder(_name(common_name, groups), self._authority.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        _write_key(pair.key, key)
        pair.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return pair

    def signing_key(self, name: str) -> Path:
        """A key with no certificate: what service account tokens are signed with."""
        path = self._folder / f"{name}.key"
        if not path.exists():
            _write_key(path, ec.generate_private_key(ec.SECP256R1()))
        return path


def _name(common_name: str, groups: Iterable[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Clocks of one machine agree, but a virtual machine's may be set back at its start.
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    # The API server finds the public half of a service account key only in this older format.
    older = serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, older, serialization.NoEncryption()))
