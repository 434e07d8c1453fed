"""Agents and tenants for tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.node.support import AgentProcess, TenantProcess, start_tenant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.node.messages import SessionView


class StartTenant(Protocol):
    """The fixture `tenant`."""

    def __call__(self, session: SessionView, *, token: str | None = None, user: int | None = None) -> TenantProcess: ...


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
