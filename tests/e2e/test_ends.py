"""What is killed comes back, and what has ended leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.cluster import components, creating
from gpuslice.cluster import node as nodes
from gpuslice.cluster.creating import Wish
from gpuslice.simulator import machine as machines
from gpuslice.simulator.machine import SimulatorError
from tests.e2e.pods import pod, read, run, start
from tests.e2e.waiting import processes_of, until, wait_for_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.cluster.clusters import Cluster
    from gpuslice.cluster.components import State


@pytest.mark.parametrize("component", ["kubelet", "containerd"])
def test_containers_outlive_a_component_of_the_node_that_is_killed(
    cluster: Cluster, namespace: str, component: str
) -> None:
    start(cluster, namespace, pod("steady", "sleep", "3600"))
    before = read(cluster, namespace, "pod/steady", ".status.containerStatuses[0].containerID")
    killed = _state(cluster, component)
    subprocess.run(nodes.inside(cluster.folder, "kill", "-KILL", str(killed.pid)), check=True)
    until(lambda: _is_back(cluster, killed), f"{component} is back")
    start(cluster, namespace, pod("later", "sleep", "3600"))
    assert run(cluster, namespace, "steady", "echo", "alive") == "alive\n"
    assert read(cluster, namespace, "pod/steady", ".status.containerStatuses[0].containerID") == before
    assert read(cluster, namespace, "pod/steady", ".status.containerStatuses[0].restartCount") == "0"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that the test may break."""
    wish = Wish(name=f"ends-{os.getpid()}", folder=tmp_path / "cluster", owner=os.getpid(), install=False)
    made = creating.create(wish, print)
    yield made
    made.remove()


def test_a_killed_supervisor_takes_all_along_and_taking_down_removes_the_rest(own: Cluster) -> None:
    own.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=30s")
    start(own, "default", pod("victim", "sleep", "3600"))
    node = nodes.description(own.folder)
    assert node is not None
    uid = read(own, "default", "pod/victim", ".metadata.uid")
    status = components.read_status(own.folder)
    assert status is not None
    with contextlib.ExitStack() as stack:
        containers = [os.pidfd_open(number) for number in processes_of(uid)]
        for descriptor in containers:
            stack.callback(os.close, descriptor)
        assert containers
        os.kill(status.supervisor, signal.SIGKILL)
        for descriptor in containers:
            wait_for_end(descriptor)
    own.remove()
    assert not own.folder.exists()
    assert not node.network.claim.exists()
    assert not Path(f"/sys/class/net/{node.network.label}").exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{node.network.label}"))
    assert node.machine not in [machine.name for machine in machines.machines()]
    assert str(own.folder) not in Path("/proc/mounts").read_text()


def _state(cluster: Cluster, component: str) -> State:
    return next(state for state in cluster.states() if state.name == component)


def _is_back(cluster: Cluster, killed: State) -> bool:
    state = _state(cluster, killed.name)
    return state.restarts > killed.restarts and state.state == "ready"


def test_a_cluster_whose_folder_is_gone_still_gives_everything_back(own: Cluster) -> None:
    node = nodes.description(own.folder)
    status = own.status()
    assert node is not None
    assert status is not None
    supervisor = os.pidfd_open(status.supervisor)
    shutil.rmtree(own.folder)
    signal.pidfd_send_signal(supervisor, signal.SIGTERM)
    wait_for_end(supervisor)
    os.close(supervisor)

    assert not node.network.claim.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{node.network.label}"))
    with pytest.raises(SimulatorError):
        machines.find(node.machine)
