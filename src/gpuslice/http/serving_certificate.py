"""The certificate that the server shows: set at any time, in force from the next connection on."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuslice.http.client_authority import CertificateError
from gpuslice.system.memory_files import memory_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuslice.http.client_authority import ClientAuthority

__all__ = ["CertificateError", "ServingCertificate"]

#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for.
_NO_CHECK_TIME: Final = 0x200000
#: Of a handshake of TLS 1.3, with one to spare.
_MOST_FLIGHTS: Final = 4


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
        expires = _expiry(_context((certificate, key), None), certificate)
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
        with memory_file(pair[0]) as chain, memory_file(pair[1]) as secret:
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


def _expiry(server: ssl.SSLContext, certificate: bytes) -> float:
    """When the certificate that the server shows ends, in seconds since 1970.

    OpenSSL reads it, in a handshake of the server with a client that trusts this very certificate: Python shows what is
    in a certificate only to those who verified it, and the library that could read it otherwise would take a fifth of
    the memory that the webhook has. A certificate that no client could accept from a server is found out here, too.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    try:
        client.load_verify_locations(cadata=certificate.decode("ascii", errors="ignore"))
        return float(ssl.cert_time_to_seconds(str(_shake_hands(server, client)["notAfter"])))
    except (ssl.SSLError, ValueError) as error:
        raise _unusable(error) from None


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, object]:
    """The server's certificate, as the client has verified it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server)
    for _ in range(_MOST_FLIGHTS):
        for side in (asking, serving):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return asking.getpeercert() or {}


def _unusable(error: Exception) -> CertificateError:
    reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
    return CertificateError(f"the certificate cannot be used with its key: {_plainly(reason)}")


def _plainly(reason: str) -> str:
    return reason.lower().replace("_", " ")
