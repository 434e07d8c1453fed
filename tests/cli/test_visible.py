"""Which GPUs CUDA_VISIBLE_DEVICES means, given those that the machine has."""

from __future__ import annotations

import pytest

from gpuslice.cli.run.visible_devices import named_gpus
from gpuslice.node.admin.messages import InventoryGpu

A100, T4, MIG = "GPU-aaaaaaaa-0000", "GPU-bbbbbbbb-0000", "MIG-cccccccc-0000"


def machine(*gpus: tuple[str, str]) -> list[InventoryGpu]:
    return [
        InventoryGpu(index=str(index), uuid=uuid, model=model, memory_bytes=1 << 30, mig=uuid.startswith("MIG-"))
        for index, (uuid, model) in enumerate(gpus)
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", [A100]),
        ("1,0", [T4, A100]),
        (" 1 , 0 ", [T4, A100]),
        ("0,7,1", [A100]),
        ("0,-1,1", [A100]),
        ("0,0", [A100]),
        ("GPU-bbbb", [T4]),
        ("GPU-", []),
        ("MIG-cccccccc", [MIG]),
        ("2", []),
        ("", []),
        ("NoDevFiles", []),
        ("²", []),
    ],
)
def test_it_is_read_as_cuda_does(value: str, expected: list[str]) -> None:
    gpus = machine((A100, "one"), (T4, "one"), (MIG, "one MIG 1g.5gb"))
    assert named_gpus(value, gpus, by_bus=False) == expected


def test_numbers_mean_nothing_where_only_cuda_knows_the_order() -> None:
    mixed = machine((T4, "slow"), (A100, "fast"))
    assert named_gpus("0", mixed, by_bus=False) == []
    assert named_gpus("0", mixed, by_bus=True) == [T4]
    assert named_gpus(A100, mixed, by_bus=False) == [A100]
