"""Which sizes of GPU the cluster has: from what the node agents publish, and from labels of nodes without an agent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.kube.resources import Metadata  # noqa: TC001 - msgspec reads the types
from gpuslice.model import devices
from gpuslice.model.values import kubernetes_quantities

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.kube.resources import ObjectMetadata

#: NVIDIA's GPU feature discovery writes these: the memory of one GPU in MiB, and how many the node has.
MEMORY_LABEL: Final = "nvidia.com/gpu.memory"
COUNT_LABEL: Final = "nvidia.com/gpu.count"
_MIB: Final = 1024**2
_MOST_GPUS: Final = 1024  # of a node; what a label says beyond it is nonsense


class _Capacity(msgspec.Struct, frozen=True, gc=False):
    value: str | int = 0


class _Device(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    allow_multiple_allocations: bool = False
    capacity: dict[str, _Capacity] | None = None


class _SliceSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    devices: list[_Device] | None = None


class PublishedSlice(msgspec.Struct, frozen=True, gc=False):
    """A ResourceSlice: some of the devices of a node."""

    metadata: Metadata
    spec: _SliceSpec


@dataclass(frozen=True, slots=True)
class Gpus:
    """The sizes of a node's GPUs, or of some of them, one entry each."""

    node: str
    sizes: tuple[int, ...]


def published(found: PublishedSlice) -> Gpus | None:
    """The shared devices of a slice: MIG partitions are of a size, too, but no slice is a part of one."""
    sizes = []
    for device in found.spec.devices or ():
        capacity = (device.capacity or {}).get(devices.CAPACITY_MEMORY)
        if not device.allow_multiple_allocations or capacity is None:
            continue
        try:
            size = kubernetes_quantities.parse_whole(capacity.value)
        except ValueError:
            continue
        if size:
            sizes.append(size)
    return Gpus(found.spec.node_name, tuple(sizes)) if found.spec.devices else None


def labelled(node: ObjectMetadata) -> Gpus | None:
    """What a node's labels say of its GPUs."""
    labels = node.metadata.labels or {}
    memory, count = _number(labels.get(MEMORY_LABEL, "")), _number(labels.get(COUNT_LABEL, "1"))
    if not memory or not count:
        return None
    return Gpus(node.metadata.name, (memory * _MIB,) * min(count, _MOST_GPUS))


def sizes(slices: Iterable[Gpus], nodes: Iterable[Gpus]) -> tuple[int, ...]:
    """Without repetition, the most frequent first. A node that publishes its GPUs is not asked for labels."""
    counts: Counter[int] = Counter()
    publishing = set()
    for gpus in slices:
        counts.update(gpus.sizes)
        publishing.add(gpus.node)
    for gpus in nodes:
        if gpus.node not in publishing:
            counts.update(gpus.sizes)
    return tuple(sorted(counts, key=lambda size: (-counts[size], size)))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
