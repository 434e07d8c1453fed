"""What is killed comes back, and what has ended leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.simulator import machine as machines
from gpuslice.simulator.machine import SimulatorError
from gpuslice.system import processes
from gpuslice_cluster import components, creating, reservations
from gpuslice_cluster import network as networks
from gpuslice_cluster import node as nodes
from gpuslice_cluster.creating import ClusterOptions
from tests.cluster.sharing import run_process
from tests.e2e import breaking
from tests.e2e.pods import pod, processes_of, read, run, start
from tests.waiting import eventually, wait_for_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice_cluster.clusters import Cluster
    from gpuslice_cluster.reservations import Claim


@pytest.mark.parametrize("component", ["kubelet", "containerd"])
def test_containers_outlive_a_component_of_the_node_that_is_killed(
    breakable: Cluster, namespace: str, component: str
) -> None:
    start(breakable, namespace, pod("steady", "sleep", "3600"))
    before = read(breakable, namespace, "pod/steady", ".status.containerStatuses[0].containerID")
    breaking.kill(breakable, component)
    start(breakable, namespace, pod("later", "sleep", "3600"))
    assert run(breakable, namespace, "steady", "echo", "alive") == "alive\n"
    assert read(breakable, namespace, "pod/steady", ".status.containerStatuses[0].containerID") == before
    assert read(breakable, namespace, "pod/steady", ".status.containerStatuses[0].restartCount") == "0"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that the test may break."""
    options = ClusterOptions(
        name=f"ends-{os.getpid()}", folder=tmp_path / "cluster", owner=run_process(), install=False
    )
    made = creating.create(options, print)
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
        # At once: the containers may still be ending.
        own.remove()
        assert all(processes.has_ended(descriptor) for descriptor in containers)
    assert not own.folder.exists()
    assert not node.network.claim.exists()
    assert not Path(f"/sys/class/net/{node.network.label}").exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{node.network.label}"))
    assert node.machine not in [machine.name for machine in machines.machines()]
    assert str(own.folder) not in Path("/proc/mounts").read_text()


def _is_removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_cluster_whose_folder_is_gone_still_gives_everything_back(own: Cluster) -> None:
    node = nodes.description(own.folder)
    status = own.status()
    assert node is not None
    assert status is not None
    supervisor = os.pidfd_open(status.supervisor)
    eventually(lambda: _is_removed(own.folder), "no process writes into it any more")
    signal.pidfd_send_signal(supervisor, signal.SIGTERM)
    wait_for_end(supervisor)
    os.close(supervisor)

    assert not node.network.claim.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{node.network.label}"))
    with pytest.raises(SimulatorError):
        machines.find(node.machine)


_FIRST_PROCESS = """
import sys, time
from pathlib import Path
from gpuslice_cluster import reservations, network
network.CLAIMS = Path(sys.argv[1])
reservations.write_first_process(network.Network(int(sys.argv[2])))
print("written", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Claim]:
    """Of a number that no cluster here has."""
    place = tmp_path / "claims"
    monkeypatch.setattr(networks, "CLAIMS", place)
    for number in range(120):
        (place / str(number)).mkdir(parents=True)
    made, descriptor = reservations.take(tmp_path / "cluster", "machine-of-none")
    yield made
    os.close(descriptor)


def _is_stopped(number: int) -> bool:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_node_is_cleared_up_after_only_when_its_last_process_is_gone(claim: Claim) -> None:
    arguments = [sys.executable, "-c", _FIRST_PROCESS, str(networks.CLAIMS), str(claim.network.number)]
    with contextlib.ExitStack() as stack:
        holding = stack.enter_context(
            subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", *arguments], stdout=subprocess.PIPE, text=True
            )
        )
        stack.callback(holding.kill)
        assert holding.stdout is not None
        assert holding.stdout.readline() == "written\n"
        first = reservations.first_process(claim.network)
        assert first is not None
        # What it runs in the node's process namespace, that is there until it looks; and it does not look.
        joined = stack.enter_context(subprocess.Popen(["nsenter", f"--target={first.pid}", "--pid", "sleep", "3600"]))
        stack.callback(joined.kill)
        eventually(lambda: Path(f"/proc/{joined.pid}/task/{joined.pid}/children").read_text(), "it has joined")
        joined.send_signal(signal.SIGSTOP)
        stack.callback(joined.send_signal, signal.SIGCONT)
        # Woken by the signal, it still looks at its children once before it stops.
        eventually(lambda: _is_stopped(joined.pid), "it looks no more")

        holding.kill()
        eventually(lambda: not Path(f"/proc/{first.pid}/cmdline").read_bytes(), "the first process is ending")
        clearing = threading.Thread(target=reservations.clean, args=(claim.network,))
        clearing.start()
        clearing.join(0.5)
        assert clearing.is_alive()
        joined.send_signal(signal.SIGCONT)
        clearing.join()
    assert processes.open_pidfd(first) is None
