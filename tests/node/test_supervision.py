"""Each part of the agent fails with an exception that nothing expects: that is logged, counted, and named by /readyz;
the part starts again, or ends the process, as it stands beside it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.native.inside import python_path
from tests.node import kubernetes_node
from tests.node.kubelet import Share
from tests.node.support import AgentProcess, clean_environment
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.node.kubelet import ClaimServer
    from tests.node.kubernetes_node import KubernetesNode
    from tests.support import Simulated

PROGRAM = Path(__file__).with_name("failing_agent.py")
EVERY_AGENT = {
    "heartbeat": "gpuslice.node.lifetimes:Lifetimes.beat",
    "expiry": "gpuslice.node.lifetimes:Lifetimes.expire",
    "connection sweep": "gpuslice.node.attach.server:AttachServer.sweep",
    "cells search": "gpuslice.node.sessions.registry:Registry.settle_found",
    "mappings": "gpuslice.node.attach.mappings:Mappings.sweep",
    "release retry": "gpuslice.node.lifetimes:Lifetimes.retry_releases",
    "releases": "gpuslice.node.sessions.registry:Registry.release_over",
    "cross-check": "gpuslice.node.gpus.nvml:Nvml.inventory",
}
EVERY_NODE = {
    "events": "gpuslice.kube.events:Recorder.run",
    "GPU watcher": "gpuslice.node.gpus.gpu_watcher:GpuStates.refresh",
    "GPU errors": "gpuslice.node.gpus.gpu_watcher:XidEvents",
    "other plugins": "gpuslice.node.kubelet.rival_plugins:RivalPlugins.run",
}
WITH_CLAIMS = EVERY_NODE | {
    "publisher": "gpuslice.node.dra.publishing:Publisher.run",
    "claim status": "gpuslice.node.claims.claim_status:ClaimStatusWriter.run",
    "claims against cluster": "gpuslice.node.claims.preparing:ClaimPreparer.unprepare_gone",
}
WITH_SLOTS = EVERY_NODE | {
    "device plugin nvidia.com/gpu-shared": "gpuslice.node.slots.plugin:DevicePlugin.run",
    "slots against pods": "gpuslice.node.slots.backend:SlotsBackend._compare",
    "withdrawal": "gpuslice.node.dra.backend:DraBackend.withdraw",
}


class FailingAgent(AgentProcess):
    """An agent whose parts fail while there is a file with their name."""

    parts: Mapping[str, str] = {}

    def arguments(self) -> list[str | Path]:
        named = [f"{part}={where}" for part, where in self.parts.items()]
        return [sys.executable, PROGRAM, self.state.parent, *named, "--", *super().arguments()[1:]]

    def gate(self, part: str) -> Path:
        return self.state.parent / part.replace("/", "_")

    def probe(self, path: str) -> tuple[int, str]:
        try:
            url = f"http://127.0.0.1:{self.metrics_port}{path}"
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def is_named(self, part: str) -> bool:
        status, text = self.probe("/readyz")
        return status == 503 and any(line.startswith(f"{part}: ") and "injected" in line for line in text.splitlines())

    def counted(self, metric: str, part: str) -> float:
        return self.metrics()[f'gpuslice_part_{metric}_total{{part="{part}"}}']

    def logged(self, part: str) -> list[str]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line["event"] for line in lines if line.get("part") == part]


@dataclass
class Start:
    """How to start a failing agent."""

    agent: FailingAgent

    def __call__(self, parts: Mapping[str, str], *options: str, failing: bool = True) -> FailingAgent:
        agent = self.agent
        agent.parts = parts
        others = [option for option in agent.options if option not in ("--metrics", "127.0.0.1:0")]
        agent.options = [*others, "--metrics", "127.0.0.1:0", *options]
        if failing:
            for part in parts:
                agent.gate(part).touch()
        agent.start()
        return agent


def ended(agent: AgentProcess) -> None:
    if agent.process is not None:
        agent.stop()


def each_fails_and_starts_again(agent: FailingAgent) -> None:
    for part in agent.parts:
        eventually(lambda part=part: agent.is_named(part), f"{part} is named", seen=lambda: agent.probe("/readyz"))  # type: ignore[misc]
        assert agent.counted("failures", part) >= 1
        eventually(lambda part=part: "a part failed, and is started again" in agent.logged(part), "it is logged")  # type: ignore[misc]
        agent.gate(part).unlink()
        eventually(lambda part=part: not agent.is_named(part), f"{part} starts again")  # type: ignore[misc]
        assert agent.counted("restarts", part) >= 1
    eventually(lambda: agent.probe("/readyz") == (200, "ok\n"), seen=lambda: agent.probe("/readyz"))
    assert agent.probe("/healthz") == (200, "ok\n")


@pytest.fixture
def start(gpuslice_command: Path, folder: Path) -> Iterator[Start]:
    agent = FailingAgent(gpuslice_command, folder / "state", environment=clean_environment(**python_path()))
    yield Start(agent)
    ended(agent)


@pytest.fixture
def node(
    simulated: Simulated, gpuslice_command: Path, folder: Path, claim_server: ClaimServer
) -> Iterator[KubernetesNode]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the kubelet's sockets")
    made = kubernetes_node.make(simulated("2xT4"), gpuslice_command, folder, claim_server, ["--metrics-access", "open"])
    before = made.agent
    made.agent = FailingAgent(
        gpuslice_command,
        before.state,
        environment=dict(before.environment) | python_path(),
        options=before.options,
    )
    yield made
    ended(made.agent)


def start_node(node: KubernetesNode, parts: Mapping[str, str], *options: str, failing: bool = True) -> FailingAgent:
    assert isinstance(node.agent, FailingAgent)
    return Start(node.agent)(parts, *options, failing=failing)


def test_the_parts_of_every_agent(start: Start) -> None:
    each_fails_and_starts_again(start(EVERY_AGENT))


def test_the_parts_of_a_node_with_claims(node: KubernetesNode) -> None:
    each_fails_and_starts_again(start_node(node, WITH_CLAIMS))


def test_the_parts_of_a_node_with_slots(node: KubernetesNode) -> None:
    each_fails_and_starts_again(start_node(node, WITH_SLOTS, "--backend", "extended"))


def test_an_offer_that_fails_after_a_drain_ends_the_process(node: KubernetesNode) -> None:
    """The next process begins with nothing offered; this one has perhaps half of it."""
    parts = {
        "drain": "gpuslice.node.draining:Drain.drain_other_backend",
        "offer": "gpuslice.node.slots.backend:SlotsBackend.offer_gpus",
    }
    start_node(node, parts, failing=False)
    claim = node.claim("old", Share(node.device(), memory="1Gi"))
    node.kubelet.prepare(claim)
    node.agent.stop()
    agent = start_node(node, parts, "--backend", "extended")
    eventually(lambda: agent.is_named("drain"), seen=lambda: agent.probe("/readyz"))
    agent.gate("drain").unlink()
    eventually(lambda: not agent.is_named("drain"))
    node.kubelet.unprepare(claim)
    assert agent.process is not None
    assert agent.process.wait(PATIENCE_SECONDS) not in (0, -signal.SIGKILL)
    assert "a part failed, and the process ends" in agent.logged("offer")
    assert "the part 'offer' failed" in agent.log.read_text()


def test_a_loop_that_is_stuck_does_not_answer_for_itself(start: Start) -> None:
    agent = start({"heartbeat": EVERY_AGENT["heartbeat"]}, failing=False)
    assert agent.probe("/healthz") == (200, "ok\n")
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        with pytest.raises(OSError, match="timed out"):
            urllib.request.urlopen(f"http://127.0.0.1:{agent.metrics_port}/healthz", timeout=1)
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    eventually(lambda: agent.probe("/healthz") == (200, "ok\n"))
