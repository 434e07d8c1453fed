"""The DRA plugin's service: the kubelet's words for preparing and unpreparing claims, and nothing else.

Every claim is answered for itself: what goes wrong with one is told for that one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gpuslice.model.errors import GpusliceError
from gpuslice.node.claims import cdi
from gpuslice.node.claims.resource_claims import ClaimReference
from gpuslice.node.dra import device_health
from gpuslice.node.kubelet.generated import dra_pb2 as messages
from gpuslice.node.kubelet.serving import SocketServer, unary

if TYPE_CHECKING:
    from pathlib import Path

    import grpc
    import structlog

    from gpuslice.node.claims.checkpoint import PreparedResourceClaim
    from gpuslice.node.claims.preparing import ClaimPreparer
    from gpuslice.node.dra.device_health import DraHealth

_SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
#: As the kubelet asks for them at registration.
VERSIONS: Final = ("v1.DRAPlugin", device_health.VERSION)


class DraPlugin:
    """Serves the kubelet's calls."""

    def __init__(
        self, socket: Path, preparer: ClaimPreparer, health: DraHealth, log: structlog.typing.FilteringBoundLogger
    ) -> None:
        self._preparer = preparer
        self._log = log
        self._server = SocketServer(
            socket,
            {
                _SERVICE: {
                    "NodePrepareResources": unary(messages.NodePrepareResourcesRequest, self._prepare_all),
                    "NodeUnprepareResources": unary(messages.NodeUnprepareResourcesRequest, self._unprepare_all),
                },
                device_health.SERVICE: health.methods(),
            },
        )

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _prepare_all(
        self, request: messages.NodePrepareResourcesRequest, _context: grpc.aio.ServicerContext
    ) -> messages.NodePrepareResourcesResponse:
        answers = await asyncio.gather(*(self._prepare(claim) for claim in request.claims))
        return messages.NodePrepareResourcesResponse(
            claims={claim.uid: answer for claim, answer in zip(request.claims, answers, strict=True)}
        )

    async def _unprepare_all(
        self, request: messages.NodeUnprepareResourcesRequest, _context: grpc.aio.ServicerContext
    ) -> messages.NodeUnprepareResourcesResponse:
        answers = await asyncio.gather(*(self._unprepare(claim) for claim in request.claims))
        return messages.NodeUnprepareResourcesResponse(
            claims={claim.uid: answer for claim, answer in zip(request.claims, answers, strict=True)}
        )

    async def _prepare(self, claim: messages.Claim) -> messages.NodePrepareResourceResponse:
        try:
            return answer(await self._preparer.prepare(_reference(claim)))
        except Exception as error:  # noqa: BLE001 - the kubelet tells it in the pod's events and tries again
            return messages.NodePrepareResourceResponse(error=self._tell("prepare", claim, error))

    async def _unprepare(self, claim: messages.Claim) -> messages.NodeUnprepareResourceResponse:
        try:
            await self._preparer.unprepare(claim.uid)
        except Exception as error:  # noqa: BLE001 - see above
            return messages.NodeUnprepareResourceResponse(error=self._tell("unprepare", claim, error))
        return messages.NodeUnprepareResourceResponse()

    def _tell(self, operation: str, claim: messages.Claim, error: Exception) -> str:
        if isinstance(error, GpusliceError):
            self._log.warning("refused", operation=operation, claim=str(_reference(claim)), reason=str(error))
            return str(error)
        self._log.exception("failed", operation=operation, claim=str(_reference(claim)))
        return f"{operation} claim {_reference(claim)}: {str(error) or type(error).__name__} (see the agent's log)"


def answer(claim: PreparedResourceClaim) -> messages.NodePrepareResourceResponse:
    """The devices of a claim: the GPU itself, and what puts a container into the session."""
    return messages.NodePrepareResourceResponse(
        devices=[
            messages.Device(
                request_names=[device.request],
                pool_name=device.pool,
                device_name=device.device,
                share_id=device.share_id,
                cdi_device_ids=[
                    cdi.vendor_id(device.uuid),
                    *([] if device.admin else [cdi.device_id(claim.uid, device.request)]),
                ],
            )
            for device in claim.devices
        ]
    )


def _reference(claim: messages.Claim) -> ClaimReference:
    return ClaimReference(claim.namespace, claim.name, claim.uid)
