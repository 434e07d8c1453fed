"""The webhook's own authority: at every moment, what is served is trusted by what the API servers have."""

from __future__ import annotations

import dataclasses
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.pki import rotation, signing
from gpuslice.pki.authority_state import Lifetimes, State
from gpuslice.pki.rotation import StateError
from gpuslice.pki.trust import split_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ("gpuslice-webhook.gpuslice-system.svc", "127.0.0.1")
START = datetime(2026, 11, 1, tzinfo=UTC)
LIFETIMES = Lifetimes(authority=timedelta(days=100), serving=timedelta(days=10), settling=timedelta(minutes=1))


def _advance(state: State, now: datetime, *, trusting: bool = True) -> State:
    rotation.check(state, now)
    trusted = [each.certificate for each in state.authorities] if trusting else []
    return rotation.advance(state, NAMES, trusted, now, LIFETIMES)


def _fresh() -> State:
    return rotation.fresh(NAMES, START, LIFETIMES)


def test_a_client_that_trusts_the_bundle_accepts_the_certificate_for_its_names_and_no_other(tmp_path: Path) -> None:
    state = rotation.fresh(NAMES, datetime.now(UTC), LIFETIMES)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_text(state.certificate)
    key.write_text(state.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cadata=state.bundle)

    for name in NAMES:
        _handshake(client, server, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        _handshake(client, server, "somebody.else.svc")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        _handshake(ssl.create_default_context(cadata=_fresh().bundle), server, NAMES[0])


def test_nothing_is_changed_while_nothing_is_due() -> None:
    state = _fresh()

    assert _advance(state, START + timedelta(days=6)) == state


def test_a_certificate_is_renewed_by_the_same_authority_before_it_ends() -> None:
    state = _fresh()
    due = rotation.next_change(state, START, LIFETIMES)
    assert due is not None
    renewed = _advance(state, due)

    assert renewed.certificate != state.certificate
    assert renewed.bundle == state.bundle
    assert _advance(state, due - timedelta(seconds=1)) == state


def test_a_new_authority_is_trusted_before_it_is_used_and_the_old_one_until_nothing_can_be_served_by_it() -> None:
    state, now = _at_succession()
    old = rotation.issuer_of(state)

    state = _advance(state, now, trusting=False)
    assert len(state.authorities) == 2
    assert rotation.issuer_of(state) == old, "no API server trusts the new one yet"
    assert state.bundle.startswith(old)

    state = _advance(state, now)
    assert rotation.issuer_of(state) == old, "an API server may not have heard of it yet"

    now += LIFETIMES.settling
    state = _advance(state, now)
    new = rotation.issuer_of(state)
    assert new != old
    assert state.authorities[0].key is None, "who issues nothing needs no key"
    assert old in state.bundle, "a replica may not have heard of it yet"

    last = state.authorities[0].serves_until
    assert last is not None
    for moment in _moments(state, now, last):
        state = _advance(state, moment)
        assert old in state.bundle
    state = _advance(state, last + signing.SKEW)
    assert old not in state.bundle
    assert rotation.issuer_of(state) == new


def test_trust_that_was_taken_away_again_is_waited_for_anew() -> None:
    state, now = _at_succession()
    old = rotation.issuer_of(state)
    state = _advance(_advance(state, now), now)  # made, and seen to be trusted
    state = _advance(state, now + timedelta(seconds=30), trusting=False)
    state = _advance(state, now + LIFETIMES.settling)

    assert rotation.issuer_of(state) == old


def test_an_authority_that_is_never_trusted_is_never_used_and_nothing_is_written_again_and_again() -> None:
    state, now = _at_succession()
    old = rotation.issuer_of(state)
    end = signing.end(old)
    changes = 0
    while now < end:
        following = _advance(state, now, trusting=False)
        changes += following != state
        state = following
        assert rotation.issuer_of(state) == old
        due = rotation.next_change(state, now, LIFETIMES)
        now = min(due or end, now + timedelta(hours=1))
    assert changes < 10


@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(st.floats(min_value=0.001, max_value=3), st.booleans(), st.booleans()), min_size=8, max_size=40
    )
)
def test_whatever_happens_in_whatever_order_every_replica_that_may_still_serve_is_trusted(
    steps: list[tuple[float, bool, bool]],
) -> None:
    """A replica serves with any state of the last days; an API server has any bundle since it was last put."""
    short = dataclasses.replace(LIFETIMES, authority=timedelta(days=30))
    now, state = START, rotation.fresh(NAMES, START, short)
    bundle = state.bundle
    serving = [state]
    for days, put, lagging in steps:
        now += timedelta(days=days)
        try:
            rotation.check(state, now)
        except StateError:
            return  # it was not renewed for too long
        state = rotation.advance(state, NAMES, split_bundle(bundle), now, short)
        if put:
            bundle = state.bundle
        serving = [*serving, state] if lagging else [state]
        for served in serving:
            # A replica that was away may serve with its old certificate while valid: the bundle keeps its issuer.
            if signing.valid(served.certificate, now):
                assert rotation.issuer_of(served) in bundle


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda state: msgspec.structs.replace(state, certificate="nonsense"), "no certificate"),
        (lambda state: msgspec.structs.replace(state, key=_fresh().key), "another certificate's"),
        (lambda state: msgspec.structs.replace(state, authorities=()), "no key to issue"),
        (lambda state: msgspec.structs.replace(state, authorities=_fresh().authorities), "by none of the authorities"),
        (
            lambda state: msgspec.structs.replace(
                state, authorities=tuple(msgspec.structs.replace(each, key=None) for each in state.authorities)
            ),
            "no key to issue",
        ),
    ],
)
def test_a_damaged_state_is_told_from_a_good_one(damage: Callable[[State], State], reason: str) -> None:
    rotation.check(_fresh(), START)
    with pytest.raises(StateError, match=reason):
        rotation.check(damage(_fresh()), START)


def test_a_state_is_good_until_its_certificate_ends() -> None:
    state = _fresh()
    end = signing.end(state.certificate)
    rotation.check(state, end - timedelta(seconds=1))
    with pytest.raises(StateError, match="not valid now"):
        rotation.check(state, end)


def test_another_name_is_a_reason_for_another_certificate() -> None:
    state = _fresh()
    following = rotation.advance(state, ("other.svc",), [], START, LIFETIMES)

    assert signing.names(following.certificate) == {"other.svc"}
    assert following.bundle == state.bundle


def test_nonsense_in_a_bundle_trusts_no_certificate() -> None:
    assert split_bundle("nonsense") == frozenset()
    assert split_bundle("") == frozenset()
    state = _fresh()
    assert split_bundle(state.bundle.strip()) == {state.bundle}


def _at_succession() -> tuple[State, datetime]:
    """A state shortly before its authority gets a successor, and when that is."""
    state, now = _fresh(), START
    succession = signing.end(state.bundle) - LIFETIMES.authority_renewal
    while (due := rotation.next_change(state, now, LIFETIMES)) is not None and due < succession:
        now = due
        state = _advance(state, now)
    assert len(state.authorities) == 1
    return state, succession


def _moments(state: State, start: datetime, end: datetime) -> list[datetime]:
    assert start < end
    assert state.authorities
    return [start + (end - start) * part / 20 for part in range(1, 20)]


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    connecting = client.wrap_bio(to_client, to_server, server_hostname=name)
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in (connecting, serving):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
