"""What is behind the name of a device that a claim was given: a GPU of this node, or a place for a MIG partition."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuslice.model.devices import pool_name
from gpuslice.node.claims.checkpoint import PartitionPlace
from gpuslice.node.errors import AgentError
from gpuslice.node.gpus import inventory, published_devices
from gpuslice.node.gpus.nvml import NvmlUnavailableError
from gpuslice.node.gpus.published_devices import PartitionDevice, PublishedDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.node.gpus.hardware import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevice:
    """A device, as far as preparing it needs to know."""

    gpu_uuid: str
    model: str
    memory_bytes: int
    partition: PartitionPlace | None = None


class NodeDevices:
    """The devices of this node. What a GPU is does not change, so NVML is asked only for names that are not known."""

    def __init__(self, node: str) -> None:
        self.pool = pool_name(node)
        self._gpus: Sequence[Gpu] = ()

    async def find(self, name: str) -> NodeDevice | None:
        """The device of that name, or None if this node has none."""
        found = published_devices.device_named(name, self._gpus)
        if found is None:
            try:
                self._gpus = await asyncio.to_thread(inventory.read)
            except NvmlUnavailableError as error:
                raise no_nvml(error) from None
            found = published_devices.device_named(name, self._gpus)
        return None if found is None else _node_device(found)


def no_nvml(error: NvmlUnavailableError) -> AgentError:
    return AgentError(
        "no_nvml", f"the node's GPUs cannot be seen: {error}", remedy="see that NVIDIA's driver is loaded"
    )


def _node_device(found: PublishedDevice) -> NodeDevice:
    if isinstance(found, PartitionDevice):
        return NodeDevice(
            gpu_uuid=found.gpu.uuid,
            model=f"{found.gpu.product} MIG {found.profile.name}",
            memory_bytes=found.profile.memory_bytes,
            partition=PartitionPlace(found.gpu.uuid, found.profile.name, found.placement.start),
        )
    return NodeDevice(gpu_uuid=found.gpu.uuid, model=found.gpu.product, memory_bytes=found.gpu.memory_bytes)
