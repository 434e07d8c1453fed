"""Koordinator's resources."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.model.requests import Request, RequestError, whole_gpus
from tests.unit.admission.making import container, denied, pod, read

GIB = 2**30


def limits(**sizes: object) -> dict[str, object]:
    """`gpu_memory_ratio=50` is koordinator.sh/gpu-memory-ratio, and `shared=2` koordinator.sh/gpu.shared."""
    names = {name: "gpu.shared" if name == "shared" else name.replace("_", "-") for name in sizes}
    return {f"koordinator.sh/{names[name]}": value for name, value in sizes.items()}


@pytest.mark.parametrize(
    ("asked", "request_"),
    [
        (limits(gpu=100), whole_gpus(1)),
        (limits(gpu="200"), whole_gpus(2)),
        (limits(gpu=50), Request(memory_fraction=Fraction(1, 2), cores=50)),
        (limits(gpu_memory="8Gi"), Request(memory_bytes=8 * GIB)),
        (limits(gpu_core=50, gpu_memory="8Gi"), Request(memory_bytes=8 * GIB, cores=50)),
        (limits(gpu_core=50, gpu_memory_ratio=50), Request(memory_fraction=Fraction(1, 2), cores=50)),
        (limits(gpu_memory_ratio=100), Request(memory_fraction=Fraction(1))),
        (limits(gpu_core=200, gpu_memory_ratio=200), whole_gpus(2)),
        (limits(shared=1, gpu_core=50, gpu_memory_ratio=50), Request(memory_fraction=Fraction(1, 2), cores=50)),
        (
            limits(shared=2, gpu_core=100, gpu_memory_ratio=100),
            Request(memory_fraction=Fraction(1, 2), cores=50, devices=2),
        ),
        (
            limits(shared=2, gpu_core=120, gpu_memory="16Gi"),
            Request(memory_bytes=8 * GIB, cores=60, devices=2),
        ),
    ],
)
def test_amounts_are_spread_over_the_gpus(asked: dict[str, object], request_: Request) -> None:
    (reading,) = read(pod(container(limits=asked)))
    assert (reading.dialect, reading.asked.requests) == ("koordinator", (request_,))
    assert set(asked) == set(reading.asked.resources)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (limits(gpu=150), "neither 1 to 100 nor a multiple of 100"),
        (limits(gpu=100, gpu_core=50, gpu_memory_ratio=50), "asks for memory and cores, and so does"),
        (limits(gpu_memory="1Gi", gpu_memory_ratio=50), "keep one of them"),
        (limits(gpu_core=50), "asks for cores, but not for how much memory"),
        (limits(shared=2), "says on how many GPUs"),
        (limits(shared=2, gpu=100), "says on how many GPUs, but not how much of them"),
        (limits(gpu=100) | {"nvidia.com/gpu": 1}, "in two ways"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, object], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        read(pod(container(limits=asked)))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (limits(gpu_memory_ratio=150), "comes to 150% of a GPU's memory, which none has"),
        (limits(shared=2, gpu_memory_ratio=300), "comes to 150% of a GPU's memory"),
        (limits(gpu_core=200, gpu_memory="8Gi"), "comes to 200% of a GPU's cores"),
        (limits(gpu_core=300, gpu_memory_ratio=200), "comes to 150% of a GPU's cores"),
    ],
)
def test_more_than_a_gpu_has_is_refused(asked: dict[str, object], reason: str) -> None:
    message = denied(pod(container(limits=asked)))
    assert reason in message
    assert message.startswith("spec.containers[0].resources.limits[koordinator.sh/")
