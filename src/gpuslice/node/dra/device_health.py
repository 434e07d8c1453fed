"""Tells the kubelet how the devices are (v1alpha1), which it puts into the status of the pods that have them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from gpuslice.node.gpus import published_devices
from gpuslice.node.kubelet.generated import dra_health_pb2 as messages
from gpuslice.node.kubelet.serving import streaming

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import grpc

    from gpuslice.node.gpus.gpu_state import GpuState

SERVICE: Final = "v1alpha1.DRAResourceHealth"
#: As the kubelet asks for it at registration.
VERSION: Final = SERVICE
#: After so long without news, the kubelet takes a device's health for unknown.
_TIMEOUT_SECONDS: Final = 60


class DraHealth:
    """The health of all devices that the node may have published."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._latest: messages.NodeWatchResourcesResponse | None = None
        self._news = asyncio.Condition()

    def methods(self) -> Mapping[str, grpc.RpcMethodHandler]:
        return {"NodeWatchResources": streaming(messages.NodeWatchResourcesRequest, self._watch)}

    async def gpus_observed(self, states: Sequence[GpuState]) -> None:
        """The GPUs as they are now; also when nothing is new, because old news count for nothing."""
        names = published_devices.gpu_names(state.gpu for state in states)
        now = int(time.time())
        self._latest = messages.NodeWatchResourcesResponse(
            devices=[
                self._health(name, state, now)
                for state in states
                for name in (
                    names[state.gpu.uuid],
                    *(part.name for part in published_devices.partitions(state.gpu, names[state.gpu.uuid])),
                )
            ]
        )
        async with self._news:
            self._news.notify_all()

    def _health(self, name: str, state: GpuState, now: int) -> messages.DeviceHealth:
        ill = state.illness
        return messages.DeviceHealth(
            device=messages.DeviceIdentifier(pool_name=self._pool, device_name=name),
            health=messages.HEALTHY if ill is None else messages.UNHEALTHY,
            last_updated_time=now,
            health_check_timeout_seconds=_TIMEOUT_SECONDS,
            message="" if ill is None else f"{state.gpu.uuid} {ill.describe()}",
        )

    async def _watch(
        self, _request: messages.NodeWatchResourcesRequest, _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[messages.NodeWatchResourcesResponse]:
        told = None
        while True:
            async with self._news:
                while self._latest is told:
                    await self._news.wait()
            told = self._latest
            assert told is not None
            yield told
