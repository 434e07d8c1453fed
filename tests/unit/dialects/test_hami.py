"""HAMi's resources."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.model.requests import Request, RequestError
from tests.unit.admission.making import container, pod, read

MIB = 2**20


def limits(gpu: object = None, **sizes: object) -> dict[str, object]:
    count = {} if gpu is None else {"nvidia.com/gpu": gpu}
    return count | {f"nvidia.com/{name.replace('_', '-')}": value for name, value in sizes.items()}


@pytest.mark.parametrize(
    ("asked", "request_"),
    [
        (limits(1, gpumem=3000), Request(memory_bytes=3000 * MIB)),
        (limits("2", gpumem="3k", gpucores=30), Request(memory_bytes=3000 * MIB, cores=30, devices=2)),
        (limits(1, gpumem_percentage=50), Request(memory_fraction=Fraction(1, 2))),
        (limits(1, gpucores=25), Request(cores=25)),
        (limits(None, gpumem=100), Request(memory_bytes=100 * MIB)),
        (limits(1, gpumem=100, gpucores=0), Request(memory_bytes=100 * MIB)),
    ],
)
def test_each_share_has_that_size(asked: dict[str, object], request_: Request) -> None:
    (reading,) = read(pod(container(limits=asked)))
    assert (reading.dialect, reading.asked.requests) == ("hami", (request_,))
    assert set(asked) == set(reading.asked.resources)


def test_a_gpu_alone_is_nothing_of_hami() -> None:
    assert read(pod(container(limits=limits(1)))) == []
    assert read(pod(container(limits=limits(1, gpumem=0)))) == []


def test_in_an_opted_in_namespace_hami_is_still_hami() -> None:
    (reading,) = read(pod(container(limits=limits(1, gpumem=100))), opted_in=True)
    assert reading.dialect == "hami"


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (limits(1, gpumem=1, gpumem_percentage=1), "keep one of them"),
        (limits(1, gpumem_percentage=101), "above 100 percent"),
        (limits(1, gpucores=200), "above 100 percent"),
        (limits(0, gpumem=100), "is 0"),
        (limits(1, gpumem="1.5"), "not a whole number"),
        (limits("500m", gpumem=1), "not a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, object], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read(pod(container(limits=asked)))


def test_what_is_not_read_is_said() -> None:
    asked = limits(1, gpumem=1, priority=0)
    (reading,) = read(pod(container(limits=asked)))
    assert [warning.split(": ")[0] for warning in reading.asked.warnings] == [
        "spec.containers[0].resources.limits[nvidia.com/priority]",
    ]
    assert "nvidia.com/priority" in reading.asked.resources
