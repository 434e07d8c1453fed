"""Agents and tenants for tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.node import kubernetes_node
from tests.node.kubelet import ClaimServer
from tests.node.support import AgentProcess, TenantProcess, start_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuslice.node.admin.messages import SessionView
    from tests.node.kubernetes_node import KubernetesNode
    from tests.support import Simulated


class StartTenant(Protocol):
    """The fixture `tenant`."""

    def __call__(self, session: SessionView, *, token: str | None = None, user: int | None = None) -> TenantProcess: ...


class MakeKubernetesNode(Protocol):
    """The fixture `make_kubernetes_node`: a machine of those GPUs, whose agent has those options too."""

    def __call__(self, gpus: str = ..., *, options: Sequence[str] = ...) -> KubernetesNode: ...


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory with a short name: a socket's path has at most 107 characters."""
    made = Path(tempfile.mkdtemp(prefix="gpuslice-test.", dir="/dev/shm"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def new_agent(gpuslice_command: Path, folder: Path) -> Iterator[AgentProcess]:
    """An agent that is not started yet."""
    agent = AgentProcess(gpuslice_command, folder / "state")
    yield agent
    if agent.process is not None and agent.process.poll() is None:
        agent.stop()
    problems = (
        [line for line in agent.log.read_text().splitlines() if "Traceback" in line] if agent.log.exists() else []
    )
    assert not problems, agent.log.read_text()


@pytest.fixture
def agent(new_agent: AgentProcess) -> AgentProcess:
    """An agent that runs."""
    return new_agent.start()


@pytest.fixture
def tenant() -> Iterator[StartTenant]:
    """Starts tenants that end with the test."""
    started: list[TenantProcess] = []

    def start(session: SessionView, *, token: str | None = None, user: int | None = None) -> TenantProcess:
        started.append(start_tenant(session, token=token, user=user))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def as_root() -> None:
    """For tests of what only root can do."""
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts, other users")


@pytest.fixture
def claim_server(folder: Path) -> Iterator[ClaimServer]:
    """The API server's answers about claims."""
    server = ClaimServer(folder)
    yield server
    server.close()


@pytest.fixture
def make_kubernetes_node(
    simulated: Simulated, gpuslice_command: Path, folder: Path, claim_server: ClaimServer
) -> Iterator[MakeKubernetesNode]:
    """Makes a machine whose agent serves a kubelet, and is running; one per test."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the kubelet's sockets")
    nodes: list[KubernetesNode] = []

    def make(gpus: str = "2xA100-40GB", *, options: Sequence[str] = ()) -> KubernetesNode:
        nodes.append(kubernetes_node.make(simulated(gpus), gpuslice_command, folder, claim_server, options))
        nodes[0].agent.start()
        return nodes[0]

    yield make
    for node in nodes:
        if node.agent.process is not None and node.agent.process.poll() is None:
            node.agent.stop()
        log = node.agent.log.read_text()
        assert "Traceback" not in log, log


@pytest.fixture
def node(make_kubernetes_node: MakeKubernetesNode) -> KubernetesNode:
    """A machine with two GPUs whose agent serves a kubelet."""
    return make_kubernetes_node()
