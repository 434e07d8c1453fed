"""Which clients are API servers: those with a certificate of one authority, and of certain names if any are given."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class CertificateError(GpusliceError):
    """Raised when certificates cannot be used. What was in force before is still in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAuthority:
    """The authority's certificates as PEM, and the names that it may have signed for; without any, all."""

    certificates: str
    names: frozenset[str] = frozenset()

    def ask_clients(self, context: ssl.SSLContext) -> None:
        """Makes a server ask for certificates. Clients without one are served on: a probe has none.

        Raises CertificateError if the authority's certificates cannot be used. A client with a certificate of
        another authority, or with an outdated one, ends with its handshake.
        """
        try:
            context.load_verify_locations(cadata=self.certificates)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise CertificateError(f"the clients' authority cannot be used: {reason.lower()}") from None
        # What is in the file is trusted, be it signed by something else or not: so does an API server by its own.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        context.verify_mode = ssl.CERT_OPTIONAL

    def recognizes(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client with this certificate, which TLS has verified, is an API server."""
        if not certificate:
            return False
        return not self.names or not self.names.isdisjoint(_names(certificate))


def _names(certificate: Mapping[str, Any]) -> set[str]:
    """The common name and the DNS names, as Python shows them."""
    subject = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return subject | {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
