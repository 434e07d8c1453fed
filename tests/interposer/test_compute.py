"""A session's share of a GPU's time holds for every way of launching.

A slow machine makes everything take longer, so the tests only ask whether it took long enough.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.admin.messages import GpuShare

if TYPE_CHECKING:
    from gpuslice.node.admin.messages import SessionView
    from tests.interposer.conftest import Build
    from tests.interposer.node import Node

#: Of 600 ms of work: what is launched before the first kernel was seen to end, and the credit, may go early.
LAUNCHES, MICROSECONDS = 300, 2000
EARLY_SECONDS = 0.2


def _session(node: Node, percent: int) -> SessionView:
    return node.client.create(None, gpus=[GpuShare(gpu="0", limit="25%", core_percent=percent)], grace_seconds=60.0)


def _seconds(node: Node, build: Build, session: SessionView, way: str, launches: int = LAUNCHES) -> float:
    program = build("spins.c", node.machine.machine.libraries / "libcuda.so.1")
    done = node.run([program, way, str(launches), str(MICROSECONDS)], session)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / 1e9


@pytest.mark.parametrize("way", ["kernel", "changing", "configured", "graph"])
def test_a_share_of_the_time_holds_for_every_way_of_launching(node: Node, build: Build, way: str) -> None:
    work = LAUNCHES * MICROSECONDS / 1e6
    assert _seconds(node, build, _session(node, 25), way) >= (work - EARLY_SECONDS) / 0.25


def test_all_processes_of_a_session_share_its_time(node: Node, build: Build) -> None:
    session = _session(node, 50)
    program = build("spins.c", node.machine.machine.libraries / "libcuda.so.1")
    line = [str(program), "kernel", str(LAUNCHES // 2), str(MICROSECONDS)]
    processes = [node.start(line, session) for _ in range(2)]
    longest = max(int(process.communicate(timeout=120)[0]) for process in processes) / 1e9
    assert longest >= (LAUNCHES * MICROSECONDS / 1e6 - 2 * EARLY_SECONDS) / 0.5


def test_a_killed_debtor_leaves_a_debt_that_passes(node: Node, build: Build) -> None:
    session = _session(node, 25)
    program = build("spins.c", node.machine.machine.libraries / "libcuda.so.1")
    debtor = node.start([str(program), "kernel", "100000", str(MICROSECONDS)], session)
    with pytest.raises(subprocess.TimeoutExpired):
        debtor.wait(timeout=1)
    debtor.kill()
    debtor.wait()
    assert _seconds(node, build, session, "kernel", launches=3) > 0
