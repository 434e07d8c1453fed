"""Killing a component of the cluster, of its control plane or of its node."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

from gpuslice_cluster import components
from gpuslice_cluster import node as nodes
from tests.waiting import eventually

if TYPE_CHECKING:
    from gpuslice_cluster.clusters import Cluster
    from gpuslice_cluster.components import State


def kill(cluster: Cluster, component: str) -> None:
    """Returns when its supervisor has started it again, and it is ready."""
    killed = _state(cluster, component)
    inside = components.read_status(cluster.folder / nodes.FOLDER)
    if inside is not None and killed in inside.components:
        on_node(cluster, "kill", "-KILL", str(killed.pid))
    else:
        os.kill(killed.pid, signal.SIGKILL)
    eventually(lambda: _is_back(cluster, killed), f"{component} is back", seen=cluster.states)


def on_node(cluster: Cluster, *command: str) -> None:
    subprocess.run(nodes.inside(cluster.folder, *command), check=True)


def _state(cluster: Cluster, component: str) -> State:
    return next(state for state in cluster.states() if state.name == component)


def _is_back(cluster: Cluster, killed: State) -> bool:
    state = _state(cluster, killed.name)
    return state.restarts > killed.restarts and state.state == "ready"
