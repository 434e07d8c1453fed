"""A real control plane, without nodes: started by the first test that needs it, ended with the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpuslice_cluster import control_plane
from gpuslice_cluster.clusters import Cluster, new_layout
from tests.cluster.sharing import made_once, new_namespace, run_process

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
    with new_namespace(cluster) as name:
        yield name
