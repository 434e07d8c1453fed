"""Metrics: every series from the start, and exact whatever dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuslice.node.sessions.page import UNIT
from tests.node.support import GPU, AgentProcess
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.node.conftest import StartTenant

COUNTERS = ("gpuslice_alloc_events_total", "gpuslice_denied_alloc_total", "gpuslice_recovered_bytes_total")
GAUGES = ("gpuslice_sessions_active", "gpuslice_used_bytes", "gpuslice_used_bytes_total")


@pytest.fixture
def agent(new_agent: AgentProcess) -> AgentProcess:
    new_agent.options = ["--metrics", "127.0.0.1:0"]
    return new_agent.start()


def test_series_exist_before_the_first_event(agent: AgentProcess) -> None:
    samples = agent.metrics()
    assert {name: samples[name] for name in COUNTERS + GAUGES} == dict.fromkeys(COUNTERS + GAUGES, 0.0)
    agent.create("1GiB", name="idle")
    samples = agent.metrics()
    labels = f'{{container="",gpu="{GPU}",model="",name="idle",namespace="",pod="",session="idle"}}'
    for name in ("held_bytes", "peak_bytes", "overhead_bytes", "breaches_total", "processes"):
        assert samples[f"gpuslice_session_{name}{labels}"] == 0.0
    assert samples["gpuslice_sessions_active"] == 1


def sample(samples: dict[str, float], name: str, session: str) -> float:
    (value,) = [v for key, v in samples.items() if key.startswith(f"{name}{{") and f'session="{session}"' in key]
    return value


def test_counts_are_exact_across_deaths_restarts_and_releases(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create("1GiB", name="busy")
    allocations = denials = recovered = 0
    for round_ in range(4):
        workers = [tenant(session) for _ in range(2)]
        for number, worker in enumerate(workers):
            for _ in range(round_ + 1):
                worker.do("charge", 0, 100 * UNIT)
                allocations += 1
            worker.do("deny", 0)
            denials += 1
            worker.do("free", 0, 100 * UNIT * number)
            recovered += 100 * UNIT * (round_ + 1 - number)
        samples = agent.metrics()
        assert samples["gpuslice_alloc_events_total"] == allocations
        assert samples["gpuslice_denied_alloc_total"] == denials
        assert samples["gpuslice_used_bytes"] == samples["gpuslice_used_bytes_total"]
        assert samples["gpuslice_used_bytes_total"] == sample(samples, "gpuslice_session_held_bytes", "busy")
        assert sample(samples, "gpuslice_session_processes", "busy") == 2
        if round_ % 2:
            agent.kill()
        workers[0].kill()
        if round_ % 2:  # the other keeps the cells meanwhile
            agent.start()
        workers[1].kill()
        eventually(lambda: sample(agent.metrics(), "gpuslice_session_processes", "busy") == 0)
        samples = agent.metrics()
        assert samples["gpuslice_recovered_bytes_total"] == recovered
        assert samples["gpuslice_used_bytes_total"] == 0
    agent.client().release("busy")
    for _ in range(2):
        samples = agent.metrics()
        assert [samples[name] for name in COUNTERS] == [allocations, denials, recovered]
        assert samples["gpuslice_sessions_active"] == 0
        assert not any("busy" in name for name in samples)
        agent.kill()
        agent.start()


def test_a_denied_attach_and_a_quarantine_are_counted(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create(name="odd")
    tenant(session, token=session.id)
    assert agent.metrics()["gpuslice_attach_refused_total"] == 1
    agent.kill()
    (agent.state / "sessions" / "odd" / "session.json").write_text("?")
    agent.start()
    assert agent.metrics()["gpuslice_quarantined_sessions_total"] == 1
