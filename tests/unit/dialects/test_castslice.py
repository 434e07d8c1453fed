"""CastSlice's annotations, as its users know them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.model.requests import Request, RequestError
from gpuslice.model.settings import DEFAULT_SETTINGS
from tests.unit.admission.making import container, pod, read

GPU = {"nvidia.com/gpu": "1"}
OPTIMIZE = {"castops.io/optimize": "true"}


@pytest.mark.parametrize(
    ("annotations", "slots"),
    [
        ({}, 1),
        ({"castops.io/workload-type": "training"}, 4),
        ({"castops.io/workload-type": "inference"}, 2),
        ({"castops.io/workload-type": "batch"}, 2),
        ({"castops.io/workload-type": "dev"}, 1),
        ({"castops.io/slice-ratio": "7"}, 7),
        ({"castops.io/slice-ratio": "3", "castops.io/workload-type": "training"}, 3),
    ],
)
def test_the_ratio_comes_before_the_workload_type_and_that_before_the_default(
    annotations: dict[str, str], slots: int
) -> None:
    (reading,) = read(pod(container(limits=GPU), annotations=OPTIMIZE | annotations))
    assert reading.dialect == "castslice"
    assert reading.asked.requests == (Request(slots=slots),)
    assert reading.asked.resources == ("nvidia.com/gpu",)


@pytest.mark.parametrize("annotations", [{}, {"castops.io/optimize": "false"}, {"castops.io/optimize": "True"}])
def test_without_the_annotation_a_gpu_is_left_alone(annotations: dict[str, str]) -> None:
    assert read(pod(container(limits=GPU), annotations=annotations | {"castops.io/slice-ratio": "nonsense"})) == []


def test_a_namespace_that_is_opted_in_needs_no_annotation() -> None:
    (reading,) = read(pod(container(limits=GPU)), opted_in=True)
    assert reading.asked.requests == (Request(slots=1),)


@pytest.mark.parametrize("ratio", ["0", "-1", "1.5", "", "two", "\uff11", "1000000000000"])
def test_a_ratio_that_is_no_positive_number_is_refused(ratio: str) -> None:
    with pytest.raises(RequestError, match="not a positive whole number") as caught:
        read(pod(container(limits=GPU), annotations=OPTIMIZE | {"castops.io/slice-ratio": ratio}))
    assert caught.value.field == "metadata.annotations[castops.io/slice-ratio]"


def test_an_unknown_workload_type_is_refused_with_the_known_ones_even_beside_a_ratio() -> None:
    annotations = OPTIMIZE | {"castops.io/workload-type": "gaming", "castops.io/slice-ratio": "2"}
    with pytest.raises(RequestError, match="the known ones are batch, dev, inference, training") as caught:
        read(pod(container(limits=GPU), annotations=annotations))
    assert caught.value.field == "metadata.annotations[castops.io/workload-type]"


def test_every_container_and_init_container_that_has_a_gpu_is_read_and_no_other() -> None:
    readings = read(
        pod(
            container("a", GPU),
            container("b", {"cpu": "1"}),
            container("c", {"nvidia.com/gpu": 0}),
            init=(container("i", {"nvidia.com/gpu": 2}),),
            annotations=OPTIMIZE,
        )
    )
    assert [reading.place.name for reading in readings] == ["i", "a"]


def test_several_gpus_get_the_slots_of_each() -> None:
    (reading,) = read(pod(container(limits={"nvidia.com/gpu": "4"}), annotations=OPTIMIZE))
    assert reading.asked.requests == (Request(slots=1, devices=4),)


def test_names_and_presets_are_configuration() -> None:
    settings = replace(
        DEFAULT_SETTINGS,
        dialects={
            "castslice.annotations.optimize": "example.com/share",
            "castslice.annotations.workloadType": "example.com/kind",
            "castslice.presets": {"tiny": 9},
        },
    )
    annotations = {"example.com/share": "true", "example.com/kind": "tiny"}
    (reading,) = read(pod(container(limits=GPU), annotations=annotations), settings)
    assert reading.asked.requests == (Request(slots=9),)


@pytest.mark.parametrize("quantity", ["500m", "-1", "x", "1.5", ""])
def test_a_gpu_count_that_makes_no_sense_is_refused_with_its_field(quantity: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(pod(container(limits={"nvidia.com/gpu": quantity}), annotations=OPTIMIZE))
    assert caught.value.field == "spec.containers[0].resources.limits[nvidia.com/gpu]"
