"""What a node's owner can say about GPUs."""

from __future__ import annotations

from gpuslice.node.gpus.policies import GpuPolicies, Mode
from tests.unit.node.making import gpu


def test_a_uuid_says_more_than_an_index_and_that_more_than_a_model() -> None:
    found = GpuPolicies(default=Mode.MIG, gpus={"0": Mode.WHOLE, gpu(0).uuid: Mode.RESERVE, "L4": Mode.WHOLE})
    assert found.mode(gpu(0)) is Mode.RESERVE
    assert found.mode(gpu(1)) is Mode.MIG
    assert found.mode(gpu(2, "L4")) is Mode.WHOLE
    assert GpuPolicies(gpus={"2": Mode.SHARE, "L4": Mode.WHOLE}).mode(gpu(2, "L4")) is Mode.SHARE
