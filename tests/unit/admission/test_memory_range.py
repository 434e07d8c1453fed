"""Sizes that no GPU can give, in every dialect."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpuslice.admission.context import Context
from gpuslice.model.gpus import PRESETS
from tests.unit.admission.making import Object, admit, container, denied, pod, response_of

GIB = 1024**3
CLUSTER = Context(gpu_sizes=(40 * GIB, 15 * GIB))
LIMITS = "spec.containers[0].resources.limits"


TOO_LITTLE = "less than any CUDA context needs (64Mi)"
TOO_MUCH = "more than the largest GPU of the cluster has"


@pytest.mark.parametrize(
    ("limits", "field", "size", "reason", "remedy"),
    [
        ({"gpuslice.io/memory": 4}, "gpuslice.io/memory", "4 bytes", TOO_LITTLE, "write 64Mi to 40Gi"),
        ({"gpuslice.io/memory": "200Gi"}, "gpuslice.io/memory", "200Gi", TOO_MUCH, "write 64Mi to 40Gi"),
        (
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3Gi"},
            "nvidia.com/gpumem",
            "3Pi",
            TOO_MUCH,
            "it is in MiB: write 64 to 40960",
        ),
        ({"nvidia.com/gpumem": 8}, "nvidia.com/gpumem", "8Mi", TOO_LITTLE, "it is in MiB: write 64 to 40960"),
        (
            {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": 8192},
            "tencent.com/vcuda-memory",
            "2Ti",
            TOO_MUCH,
            "it is in units of 256Mi: write 1 to 160",
        ),
    ],
)
def test_it_is_refused_with_the_range_in_the_unit_of_the_field(
    limits: Object, field: str, size: str, reason: str, remedy: str
) -> None:
    message = denied(pod(container(limits=limits)), CLUSTER)
    assert message == f"{LIMITS}[{field}]: asks for {size} of GPU memory, {reason}; {remedy}"


def test_an_annotation_is_refused_like_a_resource() -> None:
    message = denied(pod(container(), annotations={"gpu-memory": "8"}), CLUSTER)
    asked = f"metadata.annotations[gpu-memory]: asks for 8Mi of GPU memory, {TOO_LITTLE}"
    assert message == f"{asked}; it is in MiB: write 64 to 40960"


def test_without_a_gpu_in_the_cluster_the_largest_that_is_known_decides() -> None:
    largest = max(model.memory_bytes for model in PRESETS.values())
    assert response_of(admit(pod(container(limits={"gpuslice.io/memory": largest}))))["allowed"]
    message = denied(pod(container(limits={"gpuslice.io/memory": largest + 1})))
    assert "of GPU memory, more than the largest known GPU (" in message


def test_a_model_that_is_named_decides_also_where_the_cluster_has_none_yet() -> None:
    """An autoscaler adds nodes for pods that wait, and for none that were refused."""

    def asking(memory: str, model: str) -> Object:
        return pod(container(limits={"gpuslice.io/memory": memory}), annotations={"gpuslice.io/gpu-model": model})

    assert response_of(admit(asking("80Gi", "A100-80GB"), CLUSTER))["allowed"]
    assert "more than an A100-80GB has; write 64Mi to 80Gi" in denied(asking("81Gi", "A100-80GB"), CLUSTER)
    assert "more than a T4 has; write 64Mi to 15Gi" in denied(asking("16Gi", "T4"), CLUSTER)
    assert response_of(admit(asking("80Gi", "X9"), CLUSTER))["allowed"]


def test_a_part_is_of_the_gpus_on_which_it_is_enough() -> None:
    def asking(part: Fraction) -> Object:
        return pod(container(), annotations={"gpuslice.io/fraction": str(part)})

    (template,) = admit(asking(Fraction(1, 300)), CLUSTER).decision.templates
    assert b"40Gi" in template.spec
    assert b"15Gi" not in template.spec
    assert denied(asking(Fraction(1, 1000)), CLUSTER) == (
        "metadata.annotations[gpuslice.io/fraction]: asks for 1/1000 of the memory, on every GPU less than any "
        "CUDA context needs (64Mi); ask for more"
    )
