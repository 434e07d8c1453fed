"""The webhook's own certificate authority: what its state is, and what the next state has to be.

Pure: time and what the API servers trust come in, the next state goes out. A rotation takes three steps, each a
state of its own, so that any replica that finds one can go on with it:

1. A new authority stands beside the old one. Certificates are the old one's; the bundle has both.
2. When every webhook configuration has had the bundle for a while, certificates are the new one's.
3. When the last certificate of the old one has expired, nothing can be serving by it, and it leaves.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from gpuslice.pki import signing
from gpuslice.pki.authority_state import Authority, State

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gpuslice.pki.authority_state import Lifetimes


class StateError(ValueError):
    """Raised when what is stored is no state that a webhook could serve with."""


def fresh(names: Sequence[str], now: datetime, lifetimes: Lifetimes) -> State:
    """The first state: one authority, and a certificate of it."""
    authority, certificate, key = _issue(_make_authority(now, lifetimes), names, now, lifetimes)
    return State(authorities=(authority,), certificate=certificate, key=key)


def check(state: State, now: datetime) -> None:
    """Raises StateError unless a webhook can serve with it now, and a replica can renew it."""
    try:
        signing.check_pair(state.certificate, state.key)
        for authority in state.authorities:
            signing.load(authority.certificate)
            if authority.key is not None:
                signing.check_pair(authority.certificate, authority.key)
    except ValueError as error:
        raise StateError(f"it holds something that is no certificate, or not its key: {error}") from None
    if not state.authorities or state.authorities[-1].key is None:
        raise StateError("it holds no key to issue certificates with")
    issuer = _issuer(state)
    if issuer is None:
        raise StateError("the serving certificate is by none of the authorities")
    if not signing.valid(state.certificate, now) or not signing.valid(issuer.certificate, now):
        raise StateError("the serving certificate, or its authority, is not valid now")


def advance(state: State, names: Sequence[str], trusted: Collection[str], now: datetime, lifetimes: Lifetimes) -> State:
    """The next state; an equal one if there is nothing to do. `state` has passed `check`.

    `trusted`: the authorities (as PEM) that every webhook configuration has in its bundle.
    """
    issuer = _issuer(state)
    assert issuer is not None, "check has looked"
    authorities = [
        _seen(authority, trusted, now)
        for authority in state.authorities
        if authority in (issuer, state.authorities[-1]) or _leaves(authority) > now
    ]
    if signing.end(authorities[-1].certificate) - now <= lifetimes.authority_renewal:
        authorities.append(_make_authority(now, lifetimes))
    issuing = _issuing(authorities, issuer, now, lifetimes)
    if issuing.certificate == issuer.certificate and not _due(state.certificate, issuer, names, now, lifetimes):
        return State(authorities=tuple(authorities), certificate=state.certificate, key=state.key)
    position = authorities.index(issuing)
    authorities[position], serving, key = _issue(issuing, names, now, lifetimes)
    authorities[:position] = [msgspec.structs.replace(older, key=None) for older in authorities[:position]]
    return State(authorities=tuple(authorities), certificate=serving, key=key)


def next_change(state: State, now: datetime, lifetimes: Lifetimes) -> datetime | None:
    """When to look again if nothing happens before. None: nothing to be done but by what others do."""
    newest = state.authorities[-1]
    moments = [
        signing.end(state.certificate) - lifetimes.serving_renewal,
        signing.end(newest.certificate) - lifetimes.authority_renewal,
        *(_leaves(authority) for authority in state.authorities[:-1]),
    ]
    if newest.trusted_since is not None:
        moments.append(newest.trusted_since + lifetimes.settling)
    return min((moment for moment in moments if moment > now), default=None)


def issuer_of(state: State) -> str:
    """The authority that the API servers must trust for the certificate to be accepted."""
    issuer = _issuer(state)
    assert issuer is not None, "check has looked"
    return issuer.certificate


def _issuing(authorities: Sequence[Authority], issuer: Authority, now: datetime, lifetimes: Lifetimes) -> Authority:
    """Who issues from now on: the newest, once it is trusted everywhere; until then who did."""
    newest = authorities[-1]
    settled = newest.trusted_since is not None and newest.trusted_since + lifetimes.settling <= now
    if settled or issuer.key is None:
        return newest
    return next(each for each in authorities if each.certificate == issuer.certificate)


def _seen(authority: Authority, trusted: Collection[str], now: datetime) -> Authority:
    """Notes since when one that has not issued yet is trusted; an administrator may have undone it."""
    if authority.serves_until is not None:
        return authority
    if authority.certificate not in trusted:
        return msgspec.structs.replace(authority, trusted_since=None)
    return msgspec.structs.replace(authority, trusted_since=authority.trusted_since or now)


def _due(certificate: str, issuer: Authority, names: Sequence[str], now: datetime, lifetimes: Lifetimes) -> bool:
    """Whether a new certificate is wanted, and would be better than this one."""
    if signing.names(certificate) != set(names):
        return True
    end = signing.end(certificate)
    return end - now <= lifetimes.serving_renewal and signing.end(issuer.certificate) > end


def _leaves(authority: Authority) -> datetime:
    """When nothing can be serving by it any more, wherever a clock is late."""
    return authority.serves_until + signing.SKEW if authority.serves_until else datetime.min.replace(tzinfo=UTC)


def _make_authority(now: datetime, lifetimes: Lifetimes) -> Authority:
    certificate, key = signing.make_authority("gpuslice webhook authority", now, now + lifetimes.authority)
    return Authority(certificate=certificate, key=key)


def _issue(
    authority: Authority, names: Sequence[str], now: datetime, lifetimes: Lifetimes
) -> tuple[Authority, str, str]:
    """A serving certificate and its key, and the authority, which now serves until that expires."""
    assert authority.key is not None, "an authority that issues has its key"
    subject = signing.Subject(common_name="gpuslice webhook", names=names)
    certificate, key = signing.issue(authority.certificate, authority.key, subject, now, now + lifetimes.serving)
    end = signing.end(certificate)
    return msgspec.structs.replace(authority, serves_until=max(end, authority.serves_until or end)), certificate, key


def _issuer(state: State) -> Authority | None:
    return next((each for each in state.authorities if signing.issued_by(state.certificate, each.certificate)), None)
