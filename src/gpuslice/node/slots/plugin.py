"""The device plugin of one extended resource (v1beta1): slots of GPUs, for clusters and nodes without DRA.

Here the plugin calls the kubelet to be known. A kubelet that is started anew removes all sockets and makes its own
again, so that is what is looked for.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from gpuslice.model.errors import GpusliceError
from gpuslice.node.claims import cdi
from gpuslice.node.kubelet.generated import device_plugin_pb2 as messages
from gpuslice.node.kubelet.serving import SocketServer, streaming, unary
from gpuslice.node.slots import slot_choice
from gpuslice.node.slots.slot_sessions import REQUEST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    import structlog

    from gpuslice.node.claims.checkpoint import PreparedSlots
    from gpuslice.node.gpus.hardware import Gpu
    from gpuslice.node.slots.slot_choice import SlotResource

_SERVICE: Final = "v1beta1.DevicePlugin"
_REGISTER: Final = "/v1beta1.Registration/Register"
_VERSION: Final = "v1beta1"
_HEALTHY: Final = "Healthy"
_UNHEALTHY: Final = "Unhealthy"
_LOOK_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 5.0


class DevicePlugin:
    """Offers the slots of GPUs, and has sessions made for containers that get some."""

    def __init__(
        self,
        folder: Path,
        resource: SlotResource,
        prepare: Callable[[SlotResource, Sequence[str]], Awaitable[PreparedSlots]],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._kubelet = folder / "kubelet.sock"
        self._resource = resource
        self._prepare = prepare
        self._log = log
        self._path = folder / f"gpuslice-{resource.name.rpartition('/')[2]}.sock"
        self._options = messages.DevicePluginOptions(get_preferred_allocation_available=True)
        self._devices: list[messages.Device] = []
        self._changed = asyncio.Condition()
        self._server = self._new_server()

    def _new_server(self) -> SocketServer:
        return SocketServer(
            self._path,
            {
                _SERVICE: {
                    "GetDevicePluginOptions": unary(messages.Empty, self._get_options),
                    "ListAndWatch": streaming(messages.Empty, self._list_and_watch),
                    "GetPreferredAllocation": unary(messages.PreferredAllocationRequest, self._prefer),
                    "Allocate": unary(messages.AllocateRequest, self._allocate_all),
                    "PreStartContainer": unary(messages.PreStartContainerRequest, self._before_start),
                }
            },
        )

    # ---- what is offered ----

    async def offer(self, gpus: Mapping[str, Gpu], ill: set[str]) -> None:
        """From now on the slots of these GPUs are offered; those of ill ones only to containers that have them."""
        devices = [
            messages.Device(
                ID=slot,
                health=_UNHEALTHY if uuid in ill else _HEALTHY,
                topology=None
                if gpu.numa_node is None
                else messages.TopologyInfo(nodes=[messages.NUMANode(ID=gpu.numa_node)]),
            )
            for uuid, gpu in gpus.items()
            for slot in slot_choice.names(uuid, self._resource.slots_per_gpu)
        ]
        if devices != self._devices:
            self._devices = devices
            async with self._changed:
                self._changed.notify_all()

    async def _list_and_watch(
        self, _request: messages.Empty, _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[messages.ListAndWatchResponse]:
        shown: list[messages.Device] | None = None
        while True:
            async with self._changed:
                while self._devices is shown:
                    await self._changed.wait()
            shown = self._devices
            yield messages.ListAndWatchResponse(devices=shown)

    async def _get_options(
        self, _request: messages.Empty, _context: grpc.aio.ServicerContext
    ) -> messages.DevicePluginOptions:
        return self._options

    # ---- what containers get ----

    async def _prefer(
        self, request: messages.PreferredAllocationRequest, _context: grpc.aio.ServicerContext
    ) -> messages.PreferredAllocationResponse:
        return messages.PreferredAllocationResponse(
            container_responses=[
                messages.ContainerPreferredAllocationResponse(
                    deviceIDs=slot_choice.prefer(
                        container.available_deviceIDs, container.must_include_deviceIDs, container.allocation_size
                    )
                )
                for container in request.container_requests
            ]
        )

    async def _allocate_all(
        self, request: messages.AllocateRequest, context: grpc.aio.ServicerContext
    ) -> messages.AllocateResponse:
        answers = []
        for container in request.container_requests:
            try:
                made = await self._prepare(self._resource, list(container.devices_ids))
            except GpusliceError as error:
                self._log.warning("refused", operation="allocate", resource=self._resource.name, reason=str(error))
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            answers.append(_answer(made))
        return messages.AllocateResponse(container_responses=answers)

    async def _before_start(
        self, _request: messages.PreStartContainerRequest, _context: grpc.aio.ServicerContext
    ) -> messages.PreStartContainerResponse:
        return messages.PreStartContainerResponse()

    # ---- being known ----

    async def run(self) -> None:
        """Until cancelled: serves, registers, and does both again when the kubelet is another."""
        known: int | None = None
        try:
            while True:
                inode = _inode(self._kubelet)
                if inode is not None and (inode != known or not self._path.exists()):
                    known = inode if await self._serve_and_register() else None
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await self._server.stop()

    async def _serve_and_register(self) -> bool:
        await self._server.stop()
        self._server = self._new_server()
        await self._server.start()
        request = messages.RegisterRequest(
            version=_VERSION, endpoint=self._path.name, resource_name=self._resource.name, options=self._options
        )
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
                register = channel.unary_unary(
                    _REGISTER,
                    request_serializer=messages.RegisterRequest.SerializeToString,
                    response_deserializer=messages.Empty.FromString,
                )
                await register(request, timeout=_PATIENCE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.warning("not registered yet", resource=self._resource.name, reason=error.details())
            return False
        self._log.info("the kubelet registered the plugin", plugin=self._resource.name)
        return True


def _answer(claim: PreparedSlots) -> messages.ContainerAllocateResponse:
    vendor = [messages.CDIDevice(name=cdi.vendor_id(device.uuid)) for device in claim.devices]
    return messages.ContainerAllocateResponse(
        cdi_devices=[*vendor, messages.CDIDevice(name=cdi.device_id(claim.uid, REQUEST))]
    )


def _inode(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None
