"""Tells the claim's status what its devices became. Beside the path of a starting pod, and no pod depends on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from gpuslice.kube.errors import ApiError, CredentialsError, UnreachableError
from gpuslice.model import devices
from gpuslice.system import timestamps

if TYPE_CHECKING:
    import structlog

    from gpuslice.node.claims.checkpoint import PreparedDevice, PreparedResourceClaim
    from gpuslice.node.claims.resource_claims import Claims

_MOST_WAITING: Final = 1000


class ClaimStatusWriter:
    """Writes one status after the other. What fails is told once and left: the next prepare writes it again."""

    def __init__(self, claims: Claims, log: structlog.typing.FilteringBoundLogger) -> None:
        self._claims = claims
        self._log = log
        self._waiting: asyncio.Queue[PreparedResourceClaim] = asyncio.Queue(_MOST_WAITING)

    def enqueue(self, claim: PreparedResourceClaim) -> None:
        """Does not wait: of too many, the claim is left without a status rather than a pod held up."""
        if not self._waiting.full():
            self._waiting.put_nowait(claim)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            claim = await self._waiting.get()
            try:
                await self._claims.report(claim.reference, [_status(claim, device) for device in claim.devices])
            except (ApiError, UnreachableError, CredentialsError) as error:
                self._log.warning("no status in the claim", claim=str(claim.reference), reason=str(error))


def _status(claim: PreparedResourceClaim, device: PreparedDevice) -> dict[str, Any]:
    session = next((session.id for session in claim.sessions if session.request == device.request), None)
    status: dict[str, Any] = {
        "driver": devices.DRIVER,
        "pool": device.pool,
        "device": device.device,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Prepared",
                "message": "the slice is ready on the node",
                "lastTransitionTime": timestamps.time(claim.created),
            }
        ],
        "data": {"uuid": device.uuid, "model": device.model}
        | ({} if device.admin else {"session": session, "memoryBytes": device.limit_bytes})
        | ({"corePercent": device.core_percent} if device.core_percent else {})
        | ({"profile": device.partition.profile} if device.partition is not None else {}),
    }
    if device.share_id is not None:
        status["shareID"] = device.share_id
    return status
