"""gpuslice's own way of asking."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.model.requests import Request, RequestError
from tests.unit.admission.making import container, pod, read

GIB = 2**30


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        ({"gpuslice.io/memory": "4Gi"}, Request(memory_bytes=4 * GIB)),
        ({"gpuslice.io/memory": 1048576}, Request(memory_bytes=2**20)),
        ({"gpuslice.io/cores": "30"}, Request(cores=30)),
        ({"gpuslice.io/cores": "30", "gpuslice.io/gpus": 2}, Request(cores=30, devices=2)),
        ({"gpuslice.io/memory": "4Gi", "gpuslice.io/gpus": 8}, Request(memory_bytes=4 * GIB, devices=8)),
        ({"gpuslice.io/gpus": 2}, Request(memory_fraction=Fraction(1), cores=100, devices=2)),
        ({"gpuslice.io/memory": "1.5Gi", "gpuslice.io/cores": 100}, Request(memory_bytes=3 * 2**29, cores=100)),
    ],
)
def test_a_container_says_memory_and_cores(limits: dict[str, object], request_: Request) -> None:
    (reading,) = read(pod(container(limits=limits)))
    assert (reading.dialect, reading.asked.requests) == ("native", (request_,))


@pytest.mark.parametrize(
    ("text", "fraction", "cores"),
    [
        ("1/3", Fraction(1, 3), 33),
        ("0.25", Fraction(1, 4), 25),
        (".5", Fraction(1, 2), 50),
        ("1", Fraction(1), 100),
        (" 2 / 3 ", Fraction(2, 3), 66),
        ("1/1000", Fraction(1, 1000), 1),
    ],
)
def test_a_fraction_is_of_memory_and_cores(text: str, fraction: Fraction, cores: int) -> None:
    (reading,) = read(pod(container(), annotations={"gpuslice.io/fraction": text}))
    assert reading.asked.requests == (Request(memory_fraction=fraction, cores=cores),)


def test_cores_of_the_container_come_before_those_of_the_fraction() -> None:
    (reading,) = read(pod(container(limits={"gpuslice.io/cores": 10}), annotations={"gpuslice.io/fraction": "1/2"}))
    assert reading.asked.requests == (Request(memory_fraction=Fraction(1, 2), cores=10),)


@pytest.mark.parametrize("text", ["0", "1.1", "3/2", "1/0", "-1/2", "half", "", "1e-1", "٣/٤", "1//2", "."])
def test_what_is_no_part_of_a_gpu_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="not a part of a GPU") as caught:
        read(pod(container(), annotations={"gpuslice.io/fraction": text}))
    assert caught.value.field == "metadata.annotations[gpuslice.io/fraction]"


def test_a_fraction_is_for_the_first_container_or_for_those_that_are_named() -> None:
    containers = (container("a"), container("b"), container("c"))
    fraction = {"gpuslice.io/fraction": "1/4"}
    init = (container("i"),)
    assert [each.place.name for each in read(pod(*containers, init=init, annotations=fraction))] == ["a"]
    named = fraction | {"gpuslice.io/containers": "c, i"}
    assert [each.place.name for each in read(pod(*containers, init=init, annotations=named))] == ["i", "c"]


@pytest.mark.parametrize(
    ("annotations", "limits", "field", "reason"),
    [
        ({"gpuslice.io/containers": "x"}, {}, "metadata.annotations[gpuslice.io/containers]", "no container 'x'"),
        ({"gpuslice.io/sharing": "maybe"}, {}, "metadata.annotations[gpuslice.io/sharing]", "not a way of sharing"),
        ({"gpuslice.io/gpu-model": '" || true'}, {}, "metadata.annotations[gpuslice.io/gpu-model]", "not the name"),
        (
            {},
            {"gpuslice.io/memory": "1Gi"},
            "spec.containers[0].resources.limits[gpuslice.io/memory]",
            "keep one of them",
        ),
        ({}, {"gpuslice.io/cores": 101}, "spec.containers[0].resources.limits[gpuslice.io/cores]", "above 100"),
    ],
)
def test_what_contradicts_itself_is_refused(
    annotations: dict[str, str], limits: dict[str, object], field: str, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        read(pod(container(limits=limits), annotations={"gpuslice.io/fraction": "1/2"} | annotations))
    assert caught.value.field == field


@pytest.mark.parametrize(("text", "model"), [("a100-40gb", "A100-40GB"), ("NVIDIA B200", "B200")])
def test_a_model_is_known_by_our_name_or_taken_as_it_is(text: str, model: str) -> None:
    annotations = {"gpuslice.io/gpu-model": text}
    (reading,) = read(pod(container(limits={"gpuslice.io/memory": "1Gi"}), annotations=annotations))
    assert reading.asked.requests[0].gpu_model == model


def test_a_model_alone_asks_for_nothing() -> None:
    assert read(pod(container(), annotations={"gpuslice.io/gpu-model": "T4"})) == []
