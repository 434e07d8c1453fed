"""What the kubelet lists of its pods' devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from gpuslice.node.errors import AgentError
from gpuslice.node.kubelet.generated import pod_resources_pb2 as messages
from gpuslice.node.slots.slot_sessions import ContainerSlots

if TYPE_CHECKING:
    from pathlib import Path

_LIST: Final = "/v1.PodResourcesLister/List"
_PATIENCE_SECONDS: Final = 10.0
_MOST_BYTES: Final = 64 << 20


class PodResourcesError(AgentError):
    """Raised when the kubelet cannot be asked now."""


async def containers(kubelet_folder: Path) -> list[ContainerSlots]:
    """Every container with devices of device plugins, once for each resource."""
    socket = kubelet_folder / "pod-resources" / "kubelet.sock"
    options = [("grpc.max_receive_message_length", _MOST_BYTES)]
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
            ask = channel.unary_unary(
                _LIST,
                request_serializer=messages.ListPodResourcesRequest.SerializeToString,
                response_deserializer=messages.ListPodResourcesResponse.FromString,
            )
            answer = await ask(messages.ListPodResourcesRequest(), timeout=_PATIENCE_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise PodResourcesError("pod_resources", f"the kubelet's pods cannot be listed: {error.details()}") from None
    return read(answer)


def read(answer: messages.ListPodResourcesResponse) -> list[ContainerSlots]:
    """Devices of a resource are listed apart for each NUMA node."""
    found = []
    for pod in answer.pod_resources:
        for container in pod.containers:
            merged: dict[str, list[str]] = {}
            for part in container.devices:
                merged.setdefault(part.resource_name, []).extend(part.device_ids)
            found += [
                ContainerSlots(pod.namespace, pod.name, container.name, resource, tuple(sorted(devices)))
                for resource, devices in merged.items()
            ]
    return found
