"""The default install on a default cluster, with no policy written: every example that we show runs, in a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice_cluster import creating
from gpuslice_cluster.creating import ClusterOptions
from tests.cluster.sharing import run_process
from tests.e2e.pods import read, run
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice_cluster.clusters import Cluster

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GIB = 1024**3
_SECONDS = 60


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """As `make cluster` brings it up."""
    name = f"examples-{run_process()}"
    made = creating.create(
        ClusterOptions(name=name, folder=tmp_path_factory.mktemp("examples") / name, owner=run_process()), print
    )
    yield made
    made.remove()


def test_all_examples_run_within_a_minute(fresh: Cluster) -> None:
    applied = fresh.kubectl("apply", "-f", str(EXAMPLES), "-o", "name").split()
    assert "pod/castslice" in applied
    assert "pod/whole" in applied
    count = len([each for each in applied if each.startswith("pod/")]) + 8  # those of the deployment
    eventually(lambda: len(fresh.kubectl("get", "pods", "-o", "name").split()) == count, "all pods are made")
    fresh.kubectl("wait", "--for=condition=Ready", "pod", "--all", f"--timeout={_SECONDS}s")

    assert read(fresh, "default", "pod/castslice", ".metadata.annotations.gpuslice\\.io/backend") == "dra"
    assert int(run(fresh, "default", "castslice", "cuda-test", "memory").split()[1]) == 8 * GIB
    # A whole GPU is nobody else's.
    assert int(run(fresh, "default", "whole", "cuda-test", "memory").split()[1]) == 40 * GIB
    claims = json.loads(fresh.kubectl("get", "resourceclaims", "-o", "json"))["items"]
    devices = [
        result["device"]
        for claim in claims
        for result in claim["status"]["allocation"]["devices"]["results"]
        if claim["metadata"]["ownerReferences"][0]["name"] == "whole"
    ]
    others = [
        result["device"]
        for claim in claims
        for result in claim["status"]["allocation"]["devices"]["results"]
        if claim["metadata"]["ownerReferences"][0]["name"] != "whole"
    ]
    assert len(devices) == 1
    assert not any(other.startswith(devices[0]) for other in others)
