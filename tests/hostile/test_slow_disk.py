"""A disk whose fsync takes as long as it likes: others attach, and heartbeats go on. A change is acknowledged only when
it is on the disk.

The disk waits for the test, so that nothing here depends on how fast the machine is: what is asserted happened while
one fsync or rename was under way.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.admin import client as admin_client
from gpuslice.node.admin.client import AgentClient
from gpuslice.node.sessions import page
from tests.hostile.test_stalls import heartbeats_pass
from tests.interposer.conftest import build
from tests.node.conftest import folder, new_agent, tenant
from tests.node.support import GPU, AgentProcess, clean_environment
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.interposer.conftest import Build
    from tests.node.conftest import StartTenant

__all__ = ["build", "folder", "new_agent", "tenant"]  # fixtures of tests/node and tests/interposer

ATTACHES = 3


class SlowDisk:
    """The disk of an agent that runs."""

    def __init__(self, gate: Path, agent: AgentProcess) -> None:
        self._gate = gate
        self._waiting = gate.with_name(f"{gate.name}.waiting")
        self.agent = agent

    def is_waited_for(self) -> bool:
        return self._waiting.exists()

    @contextmanager
    def stuck(self) -> Iterator[None]:
        """Every fsync and rename that begins meanwhile ends only after this."""
        self._waiting.unlink(missing_ok=True)
        self._gate.touch()
        try:
            yield
        finally:
            self._gate.unlink()


@pytest.fixture
def disk(new_agent: AgentProcess, build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    monkeypatch.setattr(admin_client, "_TIMEOUT_SECONDS", PATIENCE_SECONDS)  # the disk waits for the test
    shim = build(Path(__file__).with_name("slow_disk.c"), "-shared", "-fPIC", "-ldl")
    gate = folder / "disk"
    new_agent.environment = clean_environment(LD_PRELOAD=str(shim), SLOW_DISK_GATE=str(gate))
    yield SlowDisk(gate, new_agent.start())
    gate.unlink(missing_ok=True)


def serves_meanwhile(disk: SlowDisk, work: Callable[[AgentClient], object], tenant: StartTenant) -> None:
    """While the disk keeps `work` waiting, others attach and the heartbeat goes on; and `work` is not acknowledged."""
    other = disk.agent.create()
    watching = tenant(other)
    done = threading.Event()

    def ask() -> None:
        with AgentClient.discover(disk.agent.state, disk.agent.environment) as client:
            work(client)
            done.set()

    with ThreadPoolExecutor(1) as executor:
        with disk.stuck():
            asked = executor.submit(ask)
            eventually(disk.is_waited_for, "the disk is asked")
            for _ in range(ATTACHES):
                assert tenant(other).status == page.ATTACH_OK
            heartbeats_pass(watching)
            assert len(disk.agent.client().show(other.id).processes) == ATTACHES + 1
            assert not done.is_set(), "acknowledged before it was on the disk"
        asked.result(PATIENCE_SECONDS)
    assert done.is_set()


def test_creating_a_session(disk: SlowDisk, tenant: StartTenant) -> None:
    serves_meanwhile(disk, lambda client: client.create("1GiB", gpus=[GPU], name="late"), tenant)
    assert tenant(disk.agent.client().show("late")).status == page.ATTACH_OK


def test_changing_a_limit(disk: SlowDisk, tenant: StartTenant) -> None:
    session = disk.agent.create("2GiB")
    serves_meanwhile(disk, lambda client: client.limit(session.id, "1GiB"), tenant)
    assert disk.agent.client().show(session.id).gpus[0].limit_bytes == 1 << 30


def test_releasing_a_session(disk: SlowDisk, tenant: StartTenant) -> None:
    session = disk.agent.create()
    serves_meanwhile(disk, lambda client: client.release(session.id), tenant)
    assert tenant(session).status == page.ATTACH_UNKNOWN


def test_no_process_attaches_to_a_session_that_is_being_released(disk: SlowDisk, tenant: StartTenant) -> None:
    session = disk.agent.create()
    client = AgentClient.discover(disk.agent.state, disk.agent.environment)
    with client, ThreadPoolExecutor(1) as executor:
        with disk.stuck():
            asked = executor.submit(client.release, session.id)
            eventually(disk.is_waited_for, "the disk is asked")
            status = tenant(session).status
        asked.result(PATIENCE_SECONDS)
    assert status == page.ATTACH_UNKNOWN
