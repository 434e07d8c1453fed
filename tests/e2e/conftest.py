"""A whole cluster with a node and simulated GPUs: started by the first test that needs it, ended with the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice_cluster import creating
from gpuslice_cluster.binaries import MissingProgramError, installed, program
from gpuslice_cluster.clusters import Cluster
from gpuslice_cluster.creating import ClusterOptions
from tests.cluster.sharing import made_once, new_namespace, run_process
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _node_is_possible() -> None:
    if os.geteuid() != 0:
        pytest.skip("a node needs root")
    try:
        for name in ("runc", "busybox", "nft", "ip", "unshare"):
            installed(name)
        program("containerd")
    except MissingProgramError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests' cluster is kept, as XDG_STATE_HOME."""

    def start(folder: Path) -> None:
        options = ClusterOptions(name=_name(), gpus="2xA100-40GB", folder=_place(folder), owner=run_process())
        creating.create(options, print)

    return made_once(tmp_path_factory, "node", start)


@pytest.fixture(scope="session")
def cluster(state_home: Path) -> Cluster:
    return Cluster(_place(state_home))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs these tests (tests/scheduling.py); those that break the cluster come last."""
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(here)]
    ordered = sorted((items[place] for place in places), key=lambda item: "breakable" in _fixtures(item))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def _fixtures(item: pytest.Item) -> list[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else []


@pytest.fixture
def breakable(cluster: Cluster) -> Cluster:
    """The cluster, for a test that kills what the others need."""
    return cluster


@pytest.fixture
def alone(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with all of its GPUs free before and after."""

    def is_free() -> bool:
        return not cluster.kubectl("get", "resourceclaims", "-A", "-o", "name")

    # A test that shares the cluster leaves its namespace to be deleted behind it, and its claims with it.
    eventually(is_free, "the claims of earlier tests are gone")
    yield cluster
    eventually(is_free, "all claims are gone")


def _name() -> str:
    return f"e2e-{run_process()}"


def _place(state_home: Path) -> Path:
    return state_home / "gpuslice" / "clusters" / _name()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    with new_namespace(cluster) as name:
        yield name
    # The namespace controller takes its time; slices are free when the pods are gone.
    cluster.kubectl("delete", "pods", "--namespace", name, "--all", "--wait=false")
