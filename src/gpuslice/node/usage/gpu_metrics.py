"""Metrics of the node's GPUs: which are fit for work, and what others made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuslice.model.gpus import short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpuslice.node.gpus.gpu_state import GpuState


class GpuCollector(Collector):
    """Tells what was seen when the GPUs were last looked at."""

    def __init__(self, states: Callable[[], Sequence[GpuState]]) -> None:
        self._states = states

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        labels = ("gpu", "model")
        healthy = GaugeMetricFamily("gpuslice_gpu_healthy", "1 if the GPU is fit for work.", labels=labels)
        partitions = GaugeMetricFamily("gpuslice_gpu_partitions", "MIG partitions that the agent made.", labels=labels)
        foreign = GaugeMetricFamily(
            "gpuslice_gpu_foreign_partitions", "MIG partitions that others made.", labels=labels
        )
        for state in self._states():
            values = state.gpu.uuid, short_name(state.gpu.product)
            healthy.add_metric(values, state.illness is None)
            partitions.add_metric(values, len(state.gpu.instances) - len(state.foreign))
            foreign.add_metric(values, len(state.foreign))
        yield from (healthy, partitions, foreign)
