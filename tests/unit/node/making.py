"""GPUs for tests of what is published of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuslice.model.gpus import PRESETS
from gpuslice.node.gpus.hardware import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.node.dra.resource_slices import SliceContent


def gpu(index: int = 0, model: str = "A100-40GB", **changes: Any) -> Gpu:  # noqa: ANN401 - fields of Gpu
    preset = PRESETS[model]
    fields: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index:08x}-0000-4000-8000-000000000000",
        "product": preset.product,
        "memory_bytes": preset.memory_bytes,
        "architecture": preset.architecture.name.title(),
        "driver_version": "610.43.2",
        "cuda_version": "13.4.0",
        "pci_bus_id": f"0000:{index + 7:02x}:00.0",
        "mig_profiles": preset.mig_profiles,
    }
    return Gpu(**(fields | changes))


def devices(slices: Iterable[SliceContent]) -> dict[str, dict[str, Any]]:
    """By name, in the order that the scheduler sees."""
    return {device["name"]: device for each in slices for device in each.content.get("devices", ())}


def counter_sets(slices: Iterable[SliceContent]) -> dict[str, dict[str, int]]:
    return {
        found["name"]: {name: int(counter["value"]) for name, counter in found["counters"].items()}
        for each in slices
        for found in each.content.get("sharedCounters", ())
    }
