"""The kubelet's side of device plugins, for tests: it is registered with, watches devices, and lists its pods."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from gpuslice.node.kubelet.generated import device_plugin_pb2, pod_resources_pb2
from tests.node.kubelet import call
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from google.protobuf.message import Message


@dataclass
class Watched:
    """The list of one resource, as the plugin last sent it."""

    devices: dict[str, str] = field(default_factory=dict)
    updates: int = 0


@dataclass
class DeviceManager:
    """Started and stopped as a kubelet is: a new one removes the sockets of plugins."""

    folder: Path
    #: By resource: the name of the plugin's socket.
    plugins: dict[str, str] = field(default_factory=dict)
    pods: dict[tuple[str, str, str], dict[str, list[str]]] = field(default_factory=dict)
    watched: dict[str, Watched] = field(default_factory=dict)
    _servers: list[grpc.Server] = field(default_factory=list)
    _channels: list[grpc.Channel] = field(default_factory=list)

    @property
    def sockets(self) -> Path:
        return self.folder / "device-plugins"

    def start(self) -> DeviceManager:
        for folder in (self.sockets, self.folder / "pod-resources"):
            folder.mkdir(parents=True, exist_ok=True)
            for socket in folder.glob("*.sock"):
                socket.unlink()
        self.plugins.clear()
        self._serve(
            self.sockets / "kubelet.sock",
            "v1beta1.Registration",
            "Register",
            device_plugin_pb2.RegisterRequest,
            self._register,
        )
        self._serve(
            self.folder / "pod-resources" / "kubelet.sock",
            "v1.PodResourcesLister",
            "List",
            pod_resources_pb2.ListPodResourcesRequest,
            self._list,
        )
        return self

    def _serve(self, path: Path, service: str, method: str, request: type[Message], answer: Any) -> None:  # noqa: ANN401
        server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    def _register(self, request: device_plugin_pb2.RegisterRequest, _context: object) -> device_plugin_pb2.Empty:
        assert request.version == "v1beta1"
        assert request.options.get_preferred_allocation_available
        self.plugins[request.resource_name] = request.endpoint
        threading.Thread(target=self._watch, args=[request.resource_name], daemon=True).start()
        return device_plugin_pb2.Empty()

    def _watch(self, resource: str) -> None:
        channel = grpc.insecure_channel(f"unix:{self.sockets / self.plugins[resource]}")
        self._channels.append(channel)
        watch = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=device_plugin_pb2.Empty.SerializeToString,
            response_deserializer=device_plugin_pb2.ListAndWatchResponse.FromString,
        )
        known = self.watched.setdefault(resource, Watched())
        try:
            for update in watch(device_plugin_pb2.Empty(), wait_for_ready=True):
                known.devices = {device.ID: device.health for device in update.devices}
                known.updates += 1
        except (grpc.RpcError, ValueError):
            known.devices = {}  # the plugin is gone, or the kubelet is

    def _list(self, _request: object, _context: object) -> pod_resources_pb2.ListPodResourcesResponse:
        return pod_resources_pb2.ListPodResourcesResponse(
            pod_resources=[
                pod_resources_pb2.PodResources(
                    namespace=namespace,
                    name=pod,
                    containers=[
                        pod_resources_pb2.ContainerResources(
                            name=container,
                            # Each device apart, as for devices of different NUMA nodes.
                            devices=[
                                pod_resources_pb2.ContainerDevices(resource_name=resource, device_ids=[device])
                                for resource, devices in resources.items()
                                for device in devices
                            ],
                        )
                    ],
                )
                for (namespace, pod, container), resources in self.pods.items()
            ]
        )

    def devices(self, resource: str) -> dict[str, str]:
        """Names and health of the resource's devices, once it has any."""
        eventually(lambda: resource in self.watched and self.watched[resource].devices, f"{resource} has devices")
        return self.watched[resource].devices

    def prefer(self, resource: str, available: Sequence[str], size: int) -> list[str]:
        request = device_plugin_pb2.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, allocation_size=size
        )
        answer = call(
            self.sockets / self.plugins[resource],
            "/v1beta1.DevicePlugin/GetPreferredAllocation",
            device_plugin_pb2.PreferredAllocationRequest(container_requests=[request]),
            device_plugin_pb2.PreferredAllocationResponse,
        )
        return list(answer.container_responses[0].deviceIDs)

    def allocate(self, resource: str, devices: Sequence[str]) -> list[str]:
        """The CDI devices of a container that gets these; grpc.RpcError if it is refused."""
        request = device_plugin_pb2.ContainerAllocateRequest(devices_ids=devices)
        answer = call(
            self.sockets / self.plugins[resource],
            "/v1beta1.DevicePlugin/Allocate",
            device_plugin_pb2.AllocateRequest(container_requests=[request]),
            device_plugin_pb2.AllocateResponse,
        )
        return [device.name for device in answer.container_responses[0].cdi_devices]

    def stop(self) -> None:
        for channel in self._channels:
            channel.close()
        for server in self._servers:
            server.stop(None).wait(PATIENCE_SECONDS)
        self._channels.clear()
        self._servers.clear()
