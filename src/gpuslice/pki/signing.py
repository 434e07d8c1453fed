"""X.509: authorities and the certificates of servers and clients (ECDSA P-256), made and read as PEM."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

#: Clocks of nodes differ: what is made now is already valid where it is earlier.
SKEW: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a certificate says of its owner: a server if it has names or addresses, a client if it is to be one."""

    common_name: str
    groups: Sequence[str] = ()
    names: Sequence[str] = ()
    client: bool = False


def make_authority(common_name: str, now: datetime, end: datetime) -> tuple[str, str]:
    """A new authority's certificate and key."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # A name of its own, so that a client that looks for the issuer of a certificate finds one and not two.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{common_name} {serial:x}"[:64])])
    certificate = (
        _builder(name, name, key.public_key(), serial, now, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def issue(authority: str, authority_key: str, subject: Subject, now: datetime, end: datetime) -> tuple[str, str]:
    """A certificate for the subject, and its key. It does not outlive the authority."""
    issuer, issuer_key = load(authority), _load_key(authority_key)
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(end, issuer.not_valid_after_utc)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] if subject.names else []
    usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if subject.client else []
    builder = (
        _builder(_name(subject), issuer.subject, key.public_key(), x509.random_serial_number(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if subject.names:
        names = x509.SubjectAlternativeName([_general_name(name) for name in subject.names])
        builder = builder.add_extension(names, critical=False)
    return _pem(builder.sign(issuer_key, hashes.SHA256())), _key_pem(key)


def issued_by(certificate: str, authority: str) -> bool:
    try:
        load(certificate).verify_directly_issued_by(load(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def check_pair(certificate: str, key: str) -> None:
    """Raises ValueError unless they are a certificate and its key."""
    try:
        found, found_key = load(certificate), _load_key(key)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from None
    if found_key.public_key() != found.public_key():
        raise ValueError("a key is another certificate's")


def load(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def end(pem: str) -> datetime:
    return load(pem).not_valid_after_utc


def valid(pem: str, now: datetime) -> bool:
    certificate = load(pem)
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def names(pem: str) -> set[str]:
    """The names and addresses that a certificate is for."""
    try:
        extension = load(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in extension.value}


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, serial: int, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - SKEW)
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(subject: Subject) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in subject.groups]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _load_key(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("a key is of another kind than ours are")  # noqa: TRY004 - it is what a text holds
    return key


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
