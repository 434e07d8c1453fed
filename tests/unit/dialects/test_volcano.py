"""Volcano's resources."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.dialects.known import volcano
from gpuslice.model.requests import Request, RequestError, whole_gpus
from gpuslice.model.settings import DEFAULT_SETTINGS
from tests.unit.admission.making import container, pod, read

MIB = 2**20


def limits(**sizes: object) -> dict[str, object]:
    return {f"volcano.sh/vgpu-{name.replace('_', '-')}": value for name, value in sizes.items()}


@pytest.mark.parametrize(
    ("asked", "request_"),
    [
        (limits(number=1), Request()),
        (limits(number=1, memory=3000), Request(memory_bytes=3000 * MIB)),
        (limits(number="2", memory="3k", cores=50), Request(memory_bytes=3000 * MIB, cores=50, devices=2)),
        (limits(number=1, memory_percentage=50), Request(memory_fraction=Fraction(1, 2))),
        (limits(memory=100), Request(memory_bytes=100 * MIB)),
        (limits(number=0, memory=100, cores=0), Request(memory_bytes=100 * MIB)),
    ],
)
def test_each_share_has_that_size(asked: dict[str, object], request_: Request) -> None:
    (reading,) = read(pod(container(limits=asked)))
    assert (reading.dialect, reading.asked.requests) == ("volcano", (request_,))
    assert set(asked) == set(reading.asked.resources)


@pytest.mark.parametrize(
    ("asked", "request_"),
    [
        ({"volcano.sh/gpu-memory": 1024}, Request(memory_bytes=1024 * MIB)),
        ({"volcano.sh/gpu-number": "2"}, whole_gpus(2)),
    ],
)
def test_the_names_before_these_are_read(asked: dict[str, object], request_: Request) -> None:
    (reading,) = read(pod(container(limits=asked)))
    assert (reading.dialect, reading.asked.requests) == ("volcano", (request_,))
    assert set(asked) == set(reading.asked.resources)


def test_the_unit_of_memory_is_the_installers() -> None:
    settings = DEFAULT_SETTINGS.having(volcano.MEMORY_FACTOR, 10)
    (reading,) = read(pod(container(limits=limits(number=1, memory=300))), settings)
    assert reading.asked.requests == (Request(memory_bytes=3000 * MIB),)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (limits(number=1, memory=1, memory_percentage=1), "keep one of them"),
        (limits(number=1, memory_percentage=101), "above 100 percent"),
        (limits(number=1, cores=200), "above 100 percent"),
        (limits(number=1, memory="1.5"), "not a whole number"),
        (limits(number=1) | {"nvidia.com/gpu": 1}, "in two ways"),
        ({"volcano.sh/gpu-memory": 1024, "volcano.sh/gpu-number": 1}, "asks for GPUs, and so does"),
        (limits(cores=50) | {"volcano.sh/gpu-memory": 1024}, "asks for GPUs, and so does"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, object], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read(pod(container(limits=asked)))
