"""The plan for the webhook's certificates, made in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from gpuslice.pki import planning_process, rotation
from gpuslice.pki.authority_state import Lifetimes
from gpuslice.pki.planning_process import PlanningError, Question

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NOTHING = Question(
    stored=None, served=None, names=("webhook.svc",), trusted=frozenset(), now=NOW, lifetimes=Lifetimes()
)


async def test_the_process_answers_with_a_state_that_can_be_served() -> None:
    plan = await planning_process.ask(NOTHING)

    assert plan.changed
    rotation.check(plan.state, NOW)
    assert plan.issuer == rotation.issuer_of(plan.state)
    assert plan.ends == NOW + Lifetimes().serving


async def test_what_is_stored_and_good_is_left_as_it_is() -> None:
    stored = planning_process.plan(NOTHING).state
    plan = await planning_process.ask(msgspec.structs.replace(NOTHING, stored=stored))

    assert not plan.changed
    assert plan.state == stored
    assert plan.next_change is not None
    assert plan.next_change > NOW


def test_what_is_lost_or_broken_is_put_back_by_the_process_that_serves_with_it() -> None:
    served = planning_process.plan(NOTHING).state
    broken = msgspec.structs.replace(served, key="nonsense")
    for stored in (None, broken):
        plan = planning_process.plan(msgspec.structs.replace(NOTHING, stored=stored, served=served))
        assert plan.state == served
        assert plan.changed
        assert bool(plan.complaint) is (stored is not None)


def test_what_cannot_be_served_any_more_is_not_put_back() -> None:
    served = planning_process.plan(NOTHING).state
    later = NOW + timedelta(days=400)
    plan = planning_process.plan(msgspec.structs.replace(NOTHING, served=served, now=later))

    rotation.check(plan.state, later)
    assert plan.state.bundle != served.bundle


async def test_a_process_that_fails_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(PlanningError, match="cannot be planned"):
        await planning_process.ask(NOTHING)


def test_a_webhook_does_not_load_what_makes_certificates() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, gpuslice.pki.certificate_keeper; print('cryptography' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert loaded.stdout.strip() == "False"
