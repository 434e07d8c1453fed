"""A real control plane, without nodes: started by the first test that needs it, ended with the run."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from gpuslice.cluster import control_plane
from gpuslice.cluster.clusters import Cluster, new_layout
from tests.cluster.sharing import made_once, run_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    def start(folder: Path) -> None:
        Cluster(folder).start(control_plane.plan(new_layout(folder)), owner=run_process())

    return Cluster(made_once(tmp_path_factory, "control-plane", start))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    # Without it pods are refused; the controller manager makes it a moment later.
    cluster.kubectl("wait", "--namespace", name, "--for=create", "serviceaccount/default", "--timeout=30s")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
