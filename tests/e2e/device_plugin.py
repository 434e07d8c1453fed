"""A device plugin in its smallest form, run in a pod: one device, which CDI gives a variable and a file."""

from __future__ import annotations

import json
import threading
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from gpuslice.node.kubelet.generated import device_plugin_pb2 as messages

if TYPE_CHECKING:
    from collections.abc import Iterator

RESOURCE = "example.com/thing"
FOLDER = Path("/var/lib/kubelet/device-plugins")
SPECIFICATION = {
    "cdiVersion": "0.6.0",
    "kind": RESOURCE,
    "devices": [
        {
            "name": "one",
            "containerEdits": {
                "env": ["THING=one"],
                "mounts": [{"hostPath": "/etc/hostname", "containerPath": "/thing", "options": ["bind", "ro"]}],
            },
        }
    ],
}


def options(_request: messages.Empty, _context: grpc.ServicerContext) -> messages.DevicePluginOptions:
    return messages.DevicePluginOptions()


def list_and_watch(_request: messages.Empty, context: grpc.ServicerContext) -> Iterator[messages.ListAndWatchResponse]:
    yield messages.ListAndWatchResponse(devices=[messages.Device(ID="one", health="Healthy")])
    ended = threading.Event()
    context.add_callback(ended.set)
    ended.wait()


def allocate(request: messages.AllocateRequest, _context: grpc.ServicerContext) -> messages.AllocateResponse:
    response = messages.ContainerAllocateResponse(cdi_devices=[messages.CDIDevice(name=f"{RESOURCE}=one")])
    return messages.AllocateResponse(container_responses=[response for _ in request.container_requests])


def main() -> None:
    Path("/var/run/cdi/thing.json").write_text(json.dumps(SPECIFICATION))
    to_bytes = {"response_serializer": lambda message: message.SerializeToString()}
    empty = {"request_deserializer": messages.Empty.FromString, **to_bytes}
    handlers = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(options, **empty),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(list_and_watch, **empty),
        "Allocate": grpc.unary_unary_rpc_method_handler(
            allocate, request_deserializer=messages.AllocateRequest.FromString, **to_bytes
        ),
    }
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)])
    server.add_insecure_port(f"unix:{FOLDER / 'thing.sock'}")
    server.start()
    with grpc.insecure_channel(f"unix:{FOLDER / 'kubelet.sock'}") as channel:
        register = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=messages.RegisterRequest.SerializeToString,
            response_deserializer=messages.Empty.FromString,
        )
        register(messages.RegisterRequest(version="v1beta1", endpoint="thing.sock", resource_name=RESOURCE))
    server.wait_for_termination()


if __name__ == "__main__":
    main()
