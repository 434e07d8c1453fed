"""A whole cluster with a node and simulated GPUs: started by the first test that needs it, ended with the run."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from gpuslice_cluster import creating
from gpuslice_cluster.binaries import MissingProgramError, installed, program
from gpuslice_cluster.clusters import Cluster
from gpuslice_cluster.creating import ClusterOptions
from tests.cluster.sharing import made_once, new_namespace, run_folder, run_process
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
        options = ClusterOptions(name=_name(), folder=_place(folder), owner=run_process())
        creating.create(options, print)

    return made_once(tmp_path_factory, "node", start)


@pytest.fixture(scope="session")
def cluster(state_home: Path) -> Cluster:
    return Cluster(_place(state_home))


@pytest.fixture(autouse=True)
def _together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests use the cluster side by side, but for those that break it (`breakable`), which wait for all others."""
    if "cluster" not in request.fixturenames:
        yield
        return
    with (run_folder(tmp_path_factory) / "breaking.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if "breakable" in request.fixturenames else fcntl.LOCK_SH)
        yield


@pytest.fixture
def breakable(cluster: Cluster) -> Cluster:
    """The cluster, for a test that kills what the others need."""
    return cluster


@pytest.fixture
def alone(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, with all of its GPUs free and no other test using them until this one ends."""
    with (run_folder(tmp_path_factory) / "gpus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cluster
        eventually(lambda: not cluster.kubectl("get", "resourceclaims", "-A", "-o", "name"), "all claims are gone")


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
