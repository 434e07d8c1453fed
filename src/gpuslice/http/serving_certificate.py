"""The certificate that the server shows: set at any time, in force from the next connection on."""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from gpuslice.http.client_authority import CertificateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuslice.http.client_authority import ClientAuthority

__all__ = ["CertificateError", "ServingCertificate", "expiry"]

_FIRST_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----\s(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_UTC_TIME: Final = 0x17


class ServingCertificate:
    """The newest certificate. A pair that does not work never replaces one that does."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None
        self._pair = (b"", b"")
        #: When the certificate ends, in seconds since 1970; 0 while there is none.
        self.expires = 0.0
        #: Who signs the certificates of API servers; None if nothing tells them from other clients.
        self.client_authority: ClientAuthority | None = None
        #: Called after each change of the authority.
        self.on_client_authority: Callable[[], None] = lambda: None

    @property
    def loaded(self) -> bool:
        return self._context is not None

    @property
    def context(self) -> ssl.SSLContext:
        """The context for a new connection. Open connections keep theirs."""
        if self._context is None:
            raise CertificateError("the server has no certificate yet")
        return self._context

    def set_certificate(self, certificate: bytes, key: bytes) -> None:
        """Takes a chain and its key, both as PEM, the server's own certificate first."""
        expires = _expiry(certificate)
        self._context = _context((certificate, key), self.client_authority)
        self._pair, self.expires = (certificate, key), expires

    def set_client_authority(self, authority: ClientAuthority) -> None:
        """Asks new connections for certificates of that authority."""
        if self._context is None:
            authority.ask_clients(_empty_context())  # says now what would be wrong with it
        else:
            self._context = _context(self._pair, authority)
        self.client_authority = authority
        self.on_client_authority()


def _context(pair: tuple[bytes, bytes], authority: ClientAuthority | None) -> ssl.SSLContext:
    # A context of its own: loading into the one in use would leave it broken half-way if the two do not match. It has
    # keys of its own for sessions as well, so that no session outlives the authority that its client was known by.
    context = _empty_context()
    try:
        with _memory_file(pair[0]) as chain, _memory_file(pair[1]) as secret:
            context.load_cert_chain(chain, secret, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise _unusable(error) from None
    if authority is not None:
        authority.ask_clients(context)
    return context


def _empty_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Every API server since Kubernetes 1.19 speaks it. Before it, clients could have us negotiate again and again, and
    # remember their sessions. No API server resumes one, so none is offered: it would cost each handshake a signature.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


def _expiry(certificate: bytes) -> float:
    try:
        return expiry(certificate)
    except ValueError as error:
        raise _unusable(error) from None


def _unusable(error: Exception) -> CertificateError:
    reason = getattr(error, "reason", None) or str(error)
    return CertificateError(f"the certificate cannot be used with its key: {_plainly(reason)}")


def expiry(certificate: bytes) -> float:
    """When the first certificate of a PEM file ends, in seconds since 1970.

    Read by hand: the library that could do it would take a fifth of the memory that the webhook has.
    """
    found = _FIRST_CERTIFICATE.search(certificate)
    if found is None:
        raise ValueError("there is no certificate in it")
    try:
        body = next(_elements(base64.b64decode(found[1])))[1]
        # Certificate { TBSCertificate { [0] version, serial, signature, issuer, validity { not before, not after } } }
        validity = [content for tag, content in _elements(next(_elements(body))[1]) if tag == _SEQUENCE][2]
        (_, _), (tag, end) = _elements(validity)
        text = end.decode("ascii")
        # Years have two digits until 2049.
        full = text if tag != _UTC_TIME else ("19" if text >= "50" else "20") + text
        return datetime.strptime(full, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except (ValueError, IndexError, StopIteration, binascii.Error):
        raise ValueError("its certificate is damaged") from None


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The tag and the content of each element, one after another (DER)."""
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size], "big")
            position += size
        if position + length > len(data):
            raise ValueError("an element is longer than what holds it")
        yield tag, data[position : position + length]
        position += length


class _memory_file:  # noqa: N801 - used as a function
    """A path to those bytes, which OpenSSL insists on; nothing is written to a disk."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __enter__(self) -> str:
        self._descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        os.write(self._descriptor, self._content)
        return f"/proc/self/fd/{self._descriptor}"

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _plainly(reason: str) -> str:
    return reason.lower().replace("_", " ")
