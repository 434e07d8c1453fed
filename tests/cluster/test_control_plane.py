"""The control plane that the other tests here run on: it is real, and it comes back."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from gpuslice_cluster import control_plane
from gpuslice_cluster.clusters import Cluster, ClusterError, new_layout
from gpuslice_cluster.components import Component, Probe
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path


def test_it_is_the_kubernetes_that_we_build_for(cluster: Cluster) -> None:
    version = json.loads(cluster.kubectl("version", "-o", "json"))

    assert version["serverVersion"]["gitVersion"] == "v1.36.3"


def test_it_serves_claims(cluster: Cluster) -> None:
    assert "resourceclaimtemplates" in cluster.kubectl("api-resources", "--api-group=resource.k8s.io", "-o", "name")


def test_a_component_that_is_killed_is_started_again(tmp_path: Path) -> None:
    alone = Cluster(tmp_path)
    alone.start(control_plane.plan(new_layout(tmp_path))[:1])
    try:
        first = _only_component(alone)
        os.kill(first, signal.SIGKILL)

        eventually(lambda: _only_component(alone) not in {0, first})
    finally:
        alone.stop()
    assert alone.status() is None


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    alone = Cluster(tmp_path)
    owner = os.fork()
    if owner == 0:
        signal.pause()
        os._exit(0)
    alone.start(control_plane.plan(new_layout(tmp_path))[:1], owner=owner)
    component = _only_component(alone)
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)

    eventually(lambda: alone.status() is None)
    eventually(lambda: not _runs(component))


def test_a_component_that_cannot_start_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    broken = Component("broken", ("/bin/sh", "-c", "echo no such luck; exit 3"), ready=Probe(file="/nowhere/ready"))

    with pytest.raises(ClusterError, match=r"broken: (?s:.*)no such luck"):
        Cluster(tmp_path).start((broken,))


def _only_component(cluster: Cluster) -> int:
    status = cluster.status()
    assert status is not None
    return status.components[0].pid


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
