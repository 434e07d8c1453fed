"""Aliyun's resources and its label."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.admission.context import Context
from gpuslice.dialects.known import aliyun
from gpuslice.model.requests import Request, RequestError, whole_gpus
from gpuslice.model.settings import DEFAULT_SETTINGS
from tests.unit.admission.making import container, denied, pod, read

GIB = 2**30


def asking(memory: object = None, cores: object = None, count: object = None, label: str | None = None) -> Any:  # noqa: ANN401 - a pod
    names = {"gpu-mem": memory, "gpu-core.percentage": cores, "gpu-count": count}
    limits = {f"aliyun.com/{name}": value for name, value in names.items() if value is not None}
    made = pod(container(limits=limits))
    if label is not None:
        made["metadata"]["labels"] = {"aliyun.com/gpu-count": label}
    return made


@pytest.mark.parametrize(
    ("asked", "request_"),
    [
        (asking(3), Request(memory_bytes=3 * GIB)),
        (asking("8", cores=30), Request(memory_bytes=8 * GIB, cores=30)),
        (asking(8, label="2"), Request(memory_bytes=4 * GIB, devices=2)),
        (asking(9, label="2"), Request(memory_bytes=9 * GIB // 2, devices=2)),
        (asking(8, count=2), Request(memory_bytes=4 * GIB, devices=2)),
        (asking(8, cores=100, label="2"), Request(memory_bytes=4 * GIB, cores=50, devices=2)),
        (asking(count=2), whole_gpus(2)),
    ],
)
def test_memory_and_cores_are_spread_evenly(asked: Any, request_: Request) -> None:  # noqa: ANN401 - a pod
    (reading,) = read(asked)
    assert (reading.dialect, reading.asked.requests, reading.asked.warnings) == ("aliyun", (request_,), ())
    assert set(reading.asked.resources) == set(asked["spec"]["containers"][0]["resources"]["limits"])


def test_the_unit_of_memory_is_the_installers() -> None:
    settings = DEFAULT_SETTINGS.having(aliyun.MEMORY_UNIT, "MiB")
    (reading,) = read(asking(16276), settings)
    assert reading.asked.requests == (Request(memory_bytes=16276 * 2**20),)


def test_where_label_and_resource_differ_the_label_holds_and_that_is_said() -> None:
    (reading,) = read(asking(8, count=4, label="2"))
    assert reading.asked.requests == (Request(memory_bytes=4 * GIB, devices=2),)
    (warning,) = reading.asked.warnings
    assert "metadata.labels[aliyun.com/gpu-count] says 2" in warning


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (asking(cores=30), "the container asks for no aliyun.com/gpu-mem"),
        (asking(8, label="two"), r"metadata.labels\[aliyun.com/gpu-count\]: 'two' is not a positive whole number"),
        (asking("1.5"), "not a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: Any, reason: str) -> None:  # noqa: ANN401 - a pod
    with pytest.raises(RequestError, match=reason):
        read(asked)


def test_more_than_all_cores_of_a_gpu_are_refused() -> None:
    assert "comes to 150% of a GPU's cores, which none has" in denied(asking(8, cores=150))


def test_the_label_alone_asks_for_nothing() -> None:
    made = pod(container())
    made["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    assert read(made) == []


def test_a_size_that_no_gpu_has_is_refused_in_the_installers_unit() -> None:
    assert "it is in GiB: write 1 to" in denied(asking(16276))
    settings = DEFAULT_SETTINGS.having(aliyun.MEMORY_UNIT, "MiB")
    assert "it is in MiB: write 64 to" in denied(asking(16), Context(settings=settings))
