"""Which dialect a container speaks, and that it speaks one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gpuslice.dialects import registry
from gpuslice.model.requests import RequestError
from tests.unit.admission.making import container, pod, read

#: dialect -> (limits, annotations) of a container that speaks it.
WAYS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "castslice": ({"nvidia.com/gpu": 1}, {"castops.io/optimize": "true"}),
    "instaslice": ({"nvidia.com/mig-1g.5gb": 1}, {}),
    "vcuda": ({"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4}, {}),
    "native": ({"gpuslice.io/memory": "1Gi"}, {}),
    "hami": ({"nvidia.com/gpumem": 1000}, {}),
    "kai": ({}, {"gpu-fraction": "0.5"}),
    "volcano": ({"volcano.sh/vgpu-number": 1}, {}),
    "aliyun": ({"aliyun.com/gpu-mem": 3}, {}),
    "koordinator": ({"koordinator.sh/gpu": 50}, {}),
    "nos": ({"nvidia.com/gpu-10gb": 1}, {}),
    "timeslicing": ({"nvidia.com/gpu.shared": 1}, {}),
}
#: To these, whole GPUs are another way of asking.
CONTRADICTED = [dialect for dialect in WAYS if dialect not in ("castslice", "hami")]


def test_each_dialect_is_tried() -> None:
    assert {*WAYS} == {*registry.NAMES}


@pytest.mark.parametrize("dialect", WAYS)
def test_each_is_known_by_its_signs(dialect: str) -> None:
    limits, annotations = WAYS[dialect]
    (reading,) = read(pod(container(limits=limits), annotations=annotations))
    assert reading.dialect == dialect


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(WAYS, 2)))
def test_two_in_one_container_are_refused_and_both_are_named(first: str, second: str) -> None:
    limits = WAYS[first][0] | WAYS[second][0]
    annotations = WAYS[first][1] | WAYS[second][1]
    with pytest.raises(RequestError, match="in two ways") as caught:
        read(pod(container(limits=limits), annotations=annotations))
    assert first in str(caught.value)
    assert second in str(caught.value)


@pytest.mark.parametrize("dialect", CONTRADICTED)
def test_a_whole_gpu_beside_a_dialect_is_refused(dialect: str) -> None:
    limits, annotations = WAYS[dialect]
    with pytest.raises(RequestError, match=r"a whole GPU by spec.containers\[0\].resources.limits\[nvidia.com/gpu\]"):
        read(pod(container(limits=limits | {"nvidia.com/gpu": 1}), annotations=annotations))


def test_containers_of_one_pod_may_speak_different_dialects() -> None:
    containers = (container(name, limits) for name, (limits, _) in WAYS.items() if limits and name != "castslice")
    readings = read(pod(*containers))
    assert [reading.dialect for reading in readings] == [reading.place.name for reading in readings]
    assert len(readings) == len([limits for limits, _ in WAYS.values() if limits]) - 1
