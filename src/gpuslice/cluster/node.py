"""The plan of a node: what makes a machine within this machine, and the components that run in it.

The node has mount, process, network, host name and IPC namespaces of its own. What Kubernetes expects in fixed places
(/var/lib/kubelet, /run, /etc/cdi) is the cluster's there, and this machine's own is out of reach. When the first
process of the node is killed, the kernel ends every container and undoes every mount and interface with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.cluster import cgroups, components, containerd, kubelet
from gpuslice.cluster import network as networks
from gpuslice.cluster.binaries import installed
from gpuslice.cluster.components import Component, Plan, Probe
from gpuslice.cluster.kubelet import Identity
from gpuslice.cluster.network import Network
from gpuslice.cluster.pki import Authority
from gpuslice.simulator import machine as machines
from gpuslice.simulator.machine import SimulatorError

if TYPE_CHECKING:
    from gpuslice.cluster.control_plane import Layout

COMPONENT: Final = "node"
#: In a cluster's folder.
FOLDER: Final = "node"
#: In the node's folder: what its first process is told, and that process's number on this machine.
DESCRIPTION: Final = "node.json"
FIRST_PROCESS: Final = "first-process"


class Description(msgspec.Struct, frozen=True):
    """What the processes that hold a node have to know."""

    name: str
    network_number: int
    #: The simulated machine whose GPUs the node has; it ends with the node.
    machine: str = ""

    @property
    def network(self) -> Network:
        return Network(self.network_number)

    @property
    def runtime_folder(self) -> Path:
        """What is /run inside the node."""
        return self.network.claim / "run"

    @property
    def socket(self) -> Path:
        """The container runtime's, as this machine reaches it."""
        return self.runtime_folder / Path(containerd.SOCKET).relative_to("/run")


def plan(layout: Layout, description: Description, *, stage: int) -> Component:
    """Writes everything that the node needs into the cluster's folder, and returns how to run the node."""
    folder = layout.folder / FOLDER
    folder.mkdir(exist_ok=True)
    # All logs of a cluster are in one place.
    (layout.folder / components.LOGS).mkdir(exist_ok=True)
    (folder / components.LOGS).symlink_to(f"../{components.LOGS}")
    (folder / DESCRIPTION).write_bytes(msgspec.json.encode(description))
    authority = Authority(layout.folder / "pki")
    network = description.network
    identity = Identity(folder, description.name, network, authority, layout.server_for_pods)
    inside = (
        containerd.component(folder, network, stage=0),
        kubelet.kubelet(identity, stage=1),
        kubelet.kube_proxy(identity, stage=1),
    )
    components.write(folder / components.PLAN, Plan(inside))
    return Component(
        COMPONENT,
        (sys.executable, "-m", "gpuslice.cluster.node_process", str(folder)),
        ready=Probe(url=f"http://{network.node}:{kubelet.HEALTH_PORT}/healthz"),
        stage=stage,
    )


def description(folder: Path) -> Description | None:
    """Of the node of the cluster in this folder, if it has one."""
    try:
        return msgspec.json.decode((folder / FOLDER / DESCRIPTION).read_bytes(), type=Description)
    except FileNotFoundError:
        return None


def inside(folder: Path, *command: str) -> list[str]:
    """How to run this on the node of the cluster in this folder, in all its namespaces."""
    first = (folder / FOLDER / FIRST_PROCESS).read_text().strip()
    return [installed("nsenter"), f"--target={first}", "--mount", "--pid", "--net", "--uts", "--ipc", "--", *command]


def clean(folder: Path, node: Description | None = None) -> None:
    """Removes what outlives the processes of the node in this cluster's folder. They must have been told to end.

    Who knows the node says so: the folder may be gone already.
    """
    node = node or description(folder)
    if node is None:
        return
    _wait_for_first_process(folder / FOLDER)
    networks.remove(node.network)
    cgroups.remove(node.network.label)
    shutil.rmtree(node.runtime_folder, ignore_errors=True)


def forget(folder: Path, node: Description | None = None) -> None:
    """As `clean`, and gives back what the node was given for its life."""
    node = node or description(folder)
    if node is None:
        return
    clean(folder, node)
    networks.release(node.network)
    if node.machine:
        with contextlib.suppress(SimulatorError):  # somebody took it down
            machines.find(node.machine).destroy()


def _wait_for_first_process(folder: Path) -> None:
    """It ends after every other process of the node."""
    file = folder / FIRST_PROCESS
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        number = int(file.read_text())
        descriptor = os.pidfd_open(number)
        try:
            # Another process may have been given its number since.
            if str(folder).encode() in Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0"):
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll()
        finally:
            os.close(descriptor)
        file.unlink()
