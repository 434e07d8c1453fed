"""Tenants that make what is to be read about them large: the agent's loop reads none of it, and serves on.

What the loop reads is the kernel's count for its thread, so that nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.sessions import page
from gpuslice.system.supervised.threads import InspectionThread, InspectionTimeoutError
from tests.interposer.conftest import build
from tests.native.inside import python_path
from tests.node.conftest import agent, as_root, folder, new_agent, tenant
from tests.node.support import clean_environment, read_line
from tests.node.test_breach import gpu_agent, machine
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.interposer.conftest import Build
    from tests.node.conftest import StartTenant
    from tests.node.support import AgentProcess, TenantProcess
    from tests.support import SimulatedMachine

    Start = Callable[[subprocess.Popen[str]], None]

__all__ = [
    "agent", "as_root", "build", "folder", "gpu_agent", "machine", "new_agent", "tenant",
]  # fixtures of tests/node and tests/interposer  # fmt: skip

PROCESSES = 60
LARGE = {f"LARGE_{number}": "x" * 130_000 for number in range(8)}  # a variable has at most 128 KiB
TENANTS_WITH_MAPS = 8
MAPPINGS = 50_000
HEARTBEATS = 16


@pytest.fixture
def ready() -> Iterator[Start]:
    """Keeps processes that have said that they are ready, and ends them with the test."""
    kept: list[subprocess.Popen[str]] = []
    yield kept.append
    for process in kept:
        process.kill()
    for process in kept:
        process.communicate()


def read_by_loop(agent: AgentProcess) -> int:
    """Bytes that the agent's own thread has read since it started."""
    counts = Path(f"/proc/{agent.pid}/task/{agent.pid}/io").read_text().split()
    return int(counts[counts.index("rchar:") + 1])


def read_by_all(agent: AgentProcess) -> int:
    counts = Path(f"/proc/{agent.pid}/io").read_text().split()
    return int(counts[counts.index("rchar:") + 1])


def heartbeats_pass(watching: TenantProcess, count: int = HEARTBEATS) -> None:
    """Waits until the agent has said so often that it lives."""
    seen = {watching.control()[3]}

    def enough() -> bool:
        seen.add(watching.control()[3])
        return len(seen) > count

    eventually(enough)


def test_large_environments_are_not_read_on_the_loop(
    gpu_agent: AgentProcess, machine: SimulatedMachine, build: Build, tenant: StartTenant, ready: Start
) -> None:
    program = build(Path(__file__).with_name("gpu_user.c"), "-L", machine.directory / "lib", "-l:libcuda.so.1")
    session = gpu_agent.client().create("1GiB", gpus=["0"])
    watching = tenant(session)
    started = []
    for _ in range(PROCESSES):
        started.append(machine.start([program], **LARGE))
        ready(started[-1])
    for process in started:
        assert read_line(process) == "ready"
    before, all_before = read_by_loop(gpu_agent), read_by_all(gpu_agent)
    heartbeats_pass(watching)
    assert tenant(session).status == page.ATTACH_OK
    assert read_by_loop(gpu_agent) - before < 1 << 20  # of 60 MiB, at every look
    # Those of the session's own user are read, in a thread: the beginning of each, and not all at every look.
    assert read_by_all(gpu_agent) - all_before < PROCESSES << 20


def test_many_mappings_are_not_read_on_the_loop(new_agent: AgentProcess, tenant: StartTenant, ready: Start) -> None:
    agent = new_agent.start()
    session = agent.create()
    watching = tenant(session)
    before = read_by_loop(agent)
    arguments = [sys.executable, str(Path(__file__).with_name("tenant_with_maps.py"))]
    arguments += [session.socket, session.id, session.token, str(MAPPINGS)]
    started = []
    for _ in range(TENANTS_WITH_MAPS):
        process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=clean_environment(**python_path()),
        )  # fmt: skip
        started.append(process)
        ready(process)
    for process in started:
        assert read_line(process) == "ready"
    size = len(Path(f"/proc/{started[0].pid}/maps").read_bytes())
    assert size > MAPPINGS * 32
    heartbeats_pass(watching)
    assert tenant(session).status == page.ATTACH_OK
    # All of them were looked at by then, and are not looked at again while they are the same programs.
    eventually(lambda: read_by_all(agent) - before > TENANTS_WITH_MAPS * size)
    all_before = read_by_all(agent)
    heartbeats_pass(watching)
    assert read_by_all(agent) - all_before < size
    assert read_by_loop(agent) - before < size
    # Each kept its slot, because it has the session's pages.
    assert len(agent.client().show(session.id).processes) == TENANTS_WITH_MAPS + 2


async def test_a_read_that_never_ends_costs_one_tenant_its_reads() -> None:
    thread, never = InspectionThread(), threading.Event()
    with pytest.raises(InspectionTimeoutError, match="too long"):
        await thread.run(never.wait, tenant="hostile", seconds=0.05)
    with pytest.raises(InspectionTimeoutError, match="has not ended"):
        await thread.run(lambda: 1, tenant="hostile")
    assert await thread.run(lambda: 2, tenant="other") == 2
    never.set()
    for left_behind in threading.enumerate():
        if left_behind.name == "inspection":
            left_behind.join()
    assert await thread.run(lambda: 3, tenant="hostile") == 3


async def test_stuck_reads_are_bounded() -> None:
    thread, never = InspectionThread(), threading.Event()
    try:
        stuck = 0
        for number in range(100):
            try:
                await thread.run(never.wait, tenant=str(number), seconds=0.01)
            except InspectionTimeoutError as error:
                stuck += "too long" in str(error)
        assert stuck == 16
    finally:
        never.set()


async def test_a_read_that_ends_as_it_is_cancelled_is_cancelled() -> None:
    """Or the agent would wait for ever for the work that it stops."""
    thread, go = InspectionThread(), threading.Event()
    task = asyncio.ensure_future(thread.run(go.wait))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    go.set()
    for left in threading.enumerate():
        if left.name == "inspection":
            left.join()  # its result is on its way to the loop
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
