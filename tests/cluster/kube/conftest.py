"""What the tests of the connection to the API server share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from gpuslice_cluster import control_plane
from gpuslice_cluster.clusters import Cluster, new_layout
from tests.cluster.kube.support import install_policies, reach
from tests.cluster.sharing import run_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gpuslice.kube.client.api import Api


@pytest.fixture(scope="module")
def quiet_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server and its etcd alone, for tests that break them or fill them."""
    folder = tmp_path_factory.mktemp("quiet")
    cluster = Cluster(folder)
    cluster.start(control_plane.plan(new_layout(folder))[:2], owner=run_process())
    yield cluster
    cluster.stop()


@pytest_asyncio.fixture
async def quiet_api(quiet_cluster: Cluster) -> AsyncIterator[Api]:
    async with reach(quiet_cluster) as api:
        yield api


@pytest.fixture(scope="session")
def policies(cluster: Cluster) -> Cluster:
    """The shared cluster, with our kinds of objects."""
    install_policies(cluster)
    return cluster


@pytest_asyncio.fixture
async def api(policies: Cluster) -> AsyncIterator[Api]:
    async with reach(policies) as api:
        yield api
