"""What all replicas of the webhook share about their certificates, and how long things last. Only the shapes: a process
that serves does not load what it takes to make certificates.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """How long things last. An authority outlives every certificate that it issues."""

    authority: timedelta = timedelta(days=365)
    serving: timedelta = timedelta(days=30)
    #: Certificates are renewed when this part of their life is left.
    left_at_renewal: float = 1 / 3
    #: After a new authority is in the configurations, until certificates are its own: every API server reads the
    #: configurations by a watch, and none is much later than this.
    settling: timedelta = timedelta(minutes=1)

    @property
    def serving_renewal(self) -> timedelta:
        """So long before its end a certificate is renewed."""
        return self.serving * self.left_at_renewal

    @property
    def authority_renewal(self) -> timedelta:
        """So long before its end an authority gets a successor: it must not have to issue what it would not outlive."""
        return self.serving * 2


class Authority(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One authority. Its key goes when it issues nothing more."""

    certificate: str
    key: str | None = None
    #: Since when every webhook configuration has been seen to have it.
    trusted_since: datetime | None = None
    #: When the last certificate that it issued expires.
    serves_until: datetime | None = None


class State(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that the replicas share."""

    #: Oldest first. The last is the one that issues, or is about to.
    authorities: tuple[Authority, ...]
    #: What all replicas serve with.
    certificate: str
    key: str

    @property
    def bundle(self) -> str:
        """What the API servers have to trust."""
        return "".join(authority.certificate for authority in self.authorities)
