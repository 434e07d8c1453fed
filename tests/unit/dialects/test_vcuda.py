"""gpu-manager's resources."""

from __future__ import annotations

import pytest

from gpuslice.model.requests import Request, RequestError, whole_gpus
from tests.unit.admission.making import container, pod, read

MIB = 2**20


def limits(cores: object = None, memory: object = None) -> dict[str, object]:
    asked = {"tencent.com/vcuda-core": cores, "tencent.com/vcuda-memory": memory}
    return {name: value for name, value in asked.items() if value is not None}


@pytest.mark.parametrize(
    ("cores", "memory", "request_"),
    [
        (1, 1, Request(memory_bytes=256 * MIB, cores=1)),
        (50, "30", Request(memory_bytes=7680 * MIB, cores=50)),
        (99, 1, Request(memory_bytes=256 * MIB, cores=99)),
        (100, 1, whole_gpus(1)),
        (100, None, whole_gpus(1)),
        ("200", 60, whole_gpus(2)),
        (800, None, whole_gpus(8)),
    ],
)
def test_cores_are_hundredths_of_a_gpu_and_memory_is_in_units_of_256_mib(
    cores: object, memory: object, request_: Request
) -> None:
    (reading,) = read(pod(container(limits=limits(cores, memory))))
    assert reading.dialect == "vcuda"
    assert reading.asked.requests == (request_,)


@pytest.mark.parametrize(
    ("cores", "memory", "field", "reason"),
    [
        (101, 1, "core", "neither 1 to 100 nor a multiple of 100"),
        (150, 1, "core", "write 100 or 200"),
        (250, 1, "core", "neither"),
        (30, None, "core", "asks for no tencent.com/vcuda-memory"),
        (30, 0, "core", "asks for no tencent.com/vcuda-memory"),
        (None, 4, "memory", "asks for no tencent.com/vcuda-core"),
        (-5, 1, "core", "not a whole number"),
        ("500m", 1, "core", "not a whole number"),
        (30, "1.5", "memory", "not a whole number"),
        ("many", 1, "core", "not a quantity"),
    ],
)
def test_malformed_requests_are_refused_with_the_field_and_the_reason(
    cores: object, memory: object, field: str, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        read(pod(container(limits=limits(cores, memory))))
    assert caught.value.field == f"spec.containers[0].resources.limits[tencent.com/vcuda-{field}]"


def test_nothing_of_either_is_no_request() -> None:
    assert read(pod(container(limits=limits(0, "0")))) == []


def test_limits_and_requests_must_agree() -> None:
    asked = container(resources={"limits": limits(30, 4), "requests": limits(20, 4)})
    with pytest.raises(RequestError, match=r"is 30, but spec.containers\[0\].resources.requests"):
        read(pod(asked))
