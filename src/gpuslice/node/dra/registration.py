"""How the kubelet comes to know a plugin: it finds this socket in its registry folder and asks what is behind it.

A kubelet that is started anew looks through the folder again, so the plugin need not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.node.kubelet.generated import registration_pb2 as messages
from gpuslice.node.kubelet.serving import SocketServer, unary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import grpc
    import structlog

_SERVICE: Final = "pluginregistration.Registration"


class Registration:
    """Tells the kubelet of the plugin at `endpoint`, which must be served already."""

    def __init__(
        self,
        socket: Path,
        endpoint: Path,
        *,
        name: str,
        services: Sequence[str],
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._information = messages.PluginInfo(
            type="DRAPlugin", name=name, endpoint=str(endpoint), supported_versions=services
        )
        self._log = log
        self._server = SocketServer(
            socket,
            {
                _SERVICE: {
                    "GetInfo": unary(messages.InfoRequest, self._get_info),
                    "NotifyRegistrationStatus": unary(messages.RegistrationStatus, self._notify),
                }
            },
        )

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _get_info(
        self, _request: messages.InfoRequest, _context: grpc.aio.ServicerContext
    ) -> messages.PluginInfo:
        return self._information

    async def _notify(
        self, request: messages.RegistrationStatus, _context: grpc.aio.ServicerContext
    ) -> messages.RegistrationStatusResponse:
        if request.plugin_registered:
            self._log.info("the kubelet registered the plugin", plugin=self._information.name)
        else:
            self._log.error("the kubelet refused the plugin", plugin=self._information.name, reason=request.error)
        return messages.RegistrationStatusResponse()
