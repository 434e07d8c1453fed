"""A node that offers slots: on Kubernetes without claims by itself, else because it is told to. Pods of CastSlice and
of other dialects get slots, and each is held to its part.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpuslice_cluster import creating
from gpuslice_cluster.clusters import ClusterError
from gpuslice_cluster.creating import ClusterOptions
from tests.cluster.sharing import run_process
from tests.e2e.gpus import GIB, filled, gpu_pod, total
from tests.e2e.pods import read, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuslice_cluster.clusters import Cluster

SHARED = "nvidia.com/gpu-shared"
OUT_OF_MEMORY = 2
CASTSLICE = gpu_pod(
    "castslice", {"nvidia.com/gpu": "1"}, {"castops.io/optimize": "true", "castops.io/slice-ratio": "2"}
)


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    name = f"slots-{run_process()}"
    folder: Path = tmp_path_factory.mktemp("slots") / name
    bare = ClusterOptions(name=name, gpus="2xA100-40GB", install=False, folder=folder, owner=run_process())
    made = creating.create(bare, print)
    # As NVIDIA's feature discovery does: agents with slots publish nothing that has the size of a GPU.
    made.kubectl("label", "node", "--all", "nvidia.com/gpu.memory=40960", "nvidia.com/gpu.count=2")
    creating.install(made, "extended" if serves_claims(made) else "auto", print)
    yield made
    made.remove()


def serves_claims(cluster: Cluster) -> bool:
    return int(json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["minor"].rstrip("+")) >= 36


def test_pods_of_several_dialects_get_slots_and_are_held_to_them(slots: Cluster) -> None:
    node = f".status.allocatable.{SHARED.replace('.', chr(92) + '.')}"
    eventually(
        lambda: slots.kubectl("get", "nodes", f"-o=jsonpath={{.items[0]{node}}}") == "20", "the node offers its slots"
    )
    pods = (
        CASTSLICE,
        gpu_pod("native", {"gpuslice.io/memory": "6Gi"}),
        gpu_pod("kai", annotations={"gpu-fraction": "0.25"}),
    )
    start(slots, "default", *pods)

    for name, given in (("castslice", 8 * GIB), ("native", 8 * GIB), ("kai", 12 * GIB)):
        assert read(slots, "default", f"pod/{name}", ".metadata.annotations.gpuslice\\.io/backend") == "extended"
        assert total(slots, "default", name) == given
        assert filled(slots, "default", name, GIB) == (given, OUT_OF_MEMORY)


def test_what_slots_cannot_give_is_refused_with_the_reason(slots: Cluster) -> None:
    chosen = gpu_pod("chosen", {"gpuslice.io/memory": "6Gi"}, {"gpuslice.io/gpu-model": "A100-40GB"})
    with pytest.raises(ClusterError, match="slots are of any GPU, not of an A100-40GB"):
        slots.kubectl("create", "-f", "-", input=json.dumps(chosen))
