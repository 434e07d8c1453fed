"""Resources of nos: a family of names, among others that begin alike."""

from __future__ import annotations

import pytest

from gpuslice.model.requests import Request, RequestError
from tests.unit.admission.making import container, pod, read

GIB = 2**30


def test_the_name_is_the_size() -> None:
    (reading,) = read(pod(container(limits={"nvidia.com/gpu-10gb": 1})))
    assert (reading.dialect, reading.asked.requests) == ("nos", (Request(memory_bytes=10 * GIB),))
    assert reading.asked.resources == ("nvidia.com/gpu-10gb",)


def test_several_are_shares_of_as_many_gpus() -> None:
    (reading,) = read(pod(container(limits={"nvidia.com/gpu-10gb": "2", "nvidia.com/gpu-2gb": 1})))
    assert reading.asked.requests == (
        Request(memory_bytes=10 * GIB, devices=2),
        Request(memory_bytes=2 * GIB),
    )


@pytest.mark.parametrize("name", ["nvidia.com/gpu-0gb", "nvidia.com/gpu-tengb", "nvidia.com/gpu-99999gb"])
def test_a_name_that_is_no_size_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match=r"is not a size in GB; the known ones are 1gb, 10gb"):
        read(pod(container(limits={name: 1})))


@pytest.mark.parametrize("name", ["nvidia.com/gpu-shared", "nvidia.com/gpu-slot", "nvidia.com/gpu"])
def test_other_names_that_begin_alike_are_not_its_own(name: str) -> None:
    assert read(pod(container(limits={name: 1}))) == []
