"""gRPC over a unix socket that root alone can reach, in the agent's own event loop.

Nothing in a process that has imported grpc may fork: its threads would not be there in the child.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from gpuslice.node.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from google.protobuf.message import Message

    #: One message in, one out; or one in and a stream out.
    Unary = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Message]]
    Streaming = Callable[[Any, grpc.aio.ServicerContext], AsyncIterator[Message]]

_LONGEST_PATH: Final = 107
_STOP_SECONDS: Final = 5.0


def unary(request: type[Message], call: Unary) -> grpc.RpcMethodHandler:
    """A method that is answered once."""
    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=request.FromString, response_serializer=_to_bytes
    )


def streaming(request: type[Message], call: Streaming) -> grpc.RpcMethodHandler:
    """A method that is answered until the caller hangs up."""
    return grpc.unary_stream_rpc_method_handler(
        call, request_deserializer=request.FromString, response_serializer=_to_bytes
    )


def _to_bytes(message: Message) -> bytes:
    return message.SerializeToString()


class SocketServer:
    """Serves services at a path until it is stopped, which removes the socket."""

    def __init__(self, path: Path, services: Mapping[str, Mapping[str, grpc.RpcMethodHandler]]) -> None:
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise AgentError(
                "kubelet_folder", f"{path} is too long for a socket's path", remedy="give another --kubelet-dir"
            )
        self.path = path
        self._services = services
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Calls are answered when this returns. What a dead agent left at the path is replaced."""
        try:
            self.path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise AgentError(
                "kubelet_folder",
                f"the kubelet's folder {self.path.parent} cannot be used ({error.strerror})",
                remedy="give the kubelet's own with --kubelet-dir, and run the agent as root",
            ) from None
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, dict(methods)) for name, methods in self._services.items()]
        )
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
        except RuntimeError as error:
            raise AgentError("kubelet_folder", f"nothing can be served at {self.path}: {error}") from None
        await self._server.start()
        self.path.chmod(0o600)

    async def stop(self) -> None:
        """Answers what was asked, and asks for no more."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(_STOP_SECONDS)
        self.path.unlink(missing_ok=True)
