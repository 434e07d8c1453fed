"""The plan of a node: what makes a machine within this machine, and the components that run in it.

The node has mount, process, network, host name and IPC namespaces of its own. What Kubernetes expects in fixed places
(/var/lib/kubelet, /run, /etc/cdi) is the cluster's there, and this machine's own is out of reach. When the first
process of the node is killed, the kernel ends every container and undoes every mount and interface with it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.model.errors import GpusliceError
from gpuslice_cluster import components, containerd, kubelet, reservations
from gpuslice_cluster.binaries import installed
from gpuslice_cluster.components import Component, Plan, Probe
from gpuslice_cluster.kubelet import Identity
from gpuslice_cluster.network import Network
from gpuslice_cluster.pki import Authority

if TYPE_CHECKING:
    from gpuslice_cluster.control_plane import Layout

COMPONENT: Final = "node"
#: In a cluster's folder.
FOLDER: Final = "node"
#: In the node's folder: what its first process reads.
DESCRIPTION: Final = "node.json"


class NodeError(GpusliceError):
    """Raised when something is to be done on a node that is not there."""


class Description(msgspec.Struct, frozen=True):
    """What the processes that hold a node have to know."""

    name: str
    network_number: int
    #: The simulated machine whose GPUs the node has.
    machine: str = ""

    @property
    def network(self) -> Network:
        return Network(self.network_number)

    @property
    def socket(self) -> Path:
        """The container runtime's, as this machine reaches it."""
        return self.network.runtime_folder / Path(containerd.SOCKET).relative_to("/run")


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
        (sys.executable, "-m", "gpuslice_cluster.node_process", str(folder)),
        ready=Probe(url=f"http://{network.node}:{kubelet.HEALTH_PORT}/healthz"),
        stage=stage,
        after=(sys.executable, "-m", "gpuslice_cluster.reservations", str(layout.folder)),
    )


def description(folder: Path) -> Description | None:
    """Of the node of the cluster in this folder, if it has one."""
    try:
        return msgspec.json.decode((folder / FOLDER / DESCRIPTION).read_bytes(), type=Description)
    except FileNotFoundError:
        return None


def inside(folder: Path, *command: str) -> list[str]:
    """How to run this on the node of the cluster in this folder, in all its namespaces."""
    node = description(folder)
    first = reservations.first_process(node.network) if node is not None else None
    if first is None:
        raise NodeError(f"the cluster in {folder} has no node that runs")
    namespaces = ("--mount", "--pid", "--net", "--uts", "--ipc")
    return [installed("nsenter"), f"--target={first.pid}", *namespaces, "--", *command]
