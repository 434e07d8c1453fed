"""Which sizes of GPU a cluster has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.admission.cluster import gpu_sizes
from gpuslice.admission.cluster.gpu_sizes import Gpus, PublishedSlice
from gpuslice.kube.resources import Metadata, ObjectMetadata

_GIB = 1024**3


def _published(*devices: dict[str, Any]) -> Gpus | None:
    document = {"metadata": {"name": "slice"}, "spec": {"nodeName": "node", "devices": list(devices)}}
    return gpu_sizes.published(msgspec.convert(document, PublishedSlice))


def _device(memory: object, *, shared: bool = True) -> dict[str, Any]:
    return {"allowMultipleAllocations": shared, "capacity": {"memory": {"value": memory}}}


def test_only_devices_that_are_shared_count() -> None:
    found = _published(_device("80Gi"), _device("10Gi", shared=False), {"allowMultipleAllocations": True})

    assert found == Gpus("node", (80 * _GIB,))


@pytest.mark.parametrize("memory", ["lots", "-1", "0", "1.5"])
def test_a_capacity_that_makes_no_sense_is_left_out(memory: str) -> None:
    assert _published(_device(memory)) == Gpus("node", ())


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"nvidia.com/gpu.memory": "40960", "nvidia.com/gpu.count": "2"}, (40 * _GIB,) * 2),
        ({"nvidia.com/gpu.memory": "40960"}, (40 * _GIB,)),
        ({"nvidia.com/gpu.memory": "40960", "nvidia.com/gpu.count": "0"}, None),
        ({"nvidia.com/gpu.memory": "lots"}, None),
        ({"nvidia.com/gpu.memory": "٤"}, None),
        ({"nvidia.com/gpu.memory": "9" * 30}, None),
        ({}, None),
    ],
)
def test_a_node_s_labels_are_read_with_care(labels: dict[str, str], expected: tuple[int, ...] | None) -> None:
    found = gpu_sizes.labelled(ObjectMetadata(Metadata("node", labels=labels)))

    assert (found.sizes if found is not None else None) == expected


def test_a_label_cannot_make_us_count_for_ever() -> None:
    labels = {"nvidia.com/gpu.memory": "1", "nvidia.com/gpu.count": "999999999"}
    found = gpu_sizes.labelled(ObjectMetadata(Metadata("node", labels=labels)))

    assert found is not None
    assert len(found.sizes) == 1024


_GPUS = st.builds(Gpus, st.sampled_from("abc"), st.lists(st.integers(1, 4), max_size=5).map(tuple))


@given(st.lists(_GPUS, max_size=5), st.lists(_GPUS, max_size=5))
def test_sizes_are_told_once_each_the_most_frequent_first(slices: list[Gpus], nodes: list[Gpus]) -> None:
    found = gpu_sizes.sizes(slices, nodes)

    publishing = {each.node for each in slices}
    every = [
        size for each in [*slices, *(node for node in nodes if node.node not in publishing)] for size in each.sizes
    ]
    assert sorted(found) == sorted(set(every))
    counts = [every.count(size) for size in found]
    assert counts == sorted(counts, reverse=True)
