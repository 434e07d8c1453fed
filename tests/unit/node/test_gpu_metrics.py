"""The metrics of GPUs that a scrape of the agent shows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gpuslice.model.mig import MigPlacement
from gpuslice.node.gpus.gpu_state import GpuState
from gpuslice.node.gpus.hardware import GpuInstance
from gpuslice.node.gpus.health import Illness
from gpuslice.node.usage.gpu_metrics import GpuCollector
from tests.unit.node.making import gpu


def test_health_and_partitions_of_ours_and_of_others_are_told_per_gpu() -> None:
    ours, others = (GpuInstance("1g.5gb", MigPlacement(start, 1)) for start in (0, 1))
    partitioned = gpu(0, mig_enabled=True, instances=(ours, others))
    registry = CollectorRegistry()
    registry.register(
        GpuCollector(
            lambda: [GpuState(gpu=partitioned, foreign=(others,)), GpuState(gpu=gpu(1, "T4"), illness=Illness(79))]
        )
    )

    def value(name: str, index: int, model: str) -> float | None:
        return registry.get_sample_value(f"gpuslice_gpu_{name}", {"gpu": gpu(index).uuid, "model": model})

    assert [value(name, 0, "A100-40GB") for name in ("healthy", "partitions", "foreign_partitions")] == [1, 1, 1]
    assert [value(name, 1, "T4") for name in ("healthy", "partitions", "foreign_partitions")] == [0, 0, 0]
