"""The backend `dra`: GPUs as ResourceSlices, and claims that the kubelet has prepared here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.model import devices
from gpuslice.model.devices import pool_name
from gpuslice.node.claims.checkpoint import PreparedResourceClaim
from gpuslice.node.claims.claim_status import ClaimStatusWriter
from gpuslice.node.claims.claims_client import ApiClaims
from gpuslice.node.claims.resource_claims import ClaimUnreadableError
from gpuslice.node.dra import plugin
from gpuslice.node.dra.device_health import DraHealth
from gpuslice.node.dra.publishing import GpuPublication, Publisher
from gpuslice.node.dra.registration import Registration
from gpuslice.system.supervised.supervision import Restart

if TYPE_CHECKING:
    from pathlib import Path

    import structlog

    from gpuslice.kube.client.api import Api
    from gpuslice.node.claims.checkpoint import PreparedClaim
    from gpuslice.node.claims.preparing import ClaimPreparer
    from gpuslice.node.gpus.gpu_watcher import GpuWatcher
    from gpuslice.node.gpus.policies import GpuPolicies
    from gpuslice.system.supervised.supervision import Supervisor

_COMPARE_SECONDS: Final = 300.0


def plugin_folder(kubelet_folder: Path) -> Path:
    """Where the kubelet keeps what belongs to our DRA plugin."""
    return kubelet_folder / "plugins" / devices.DRIVER


class DraBackend:
    """Publishes the GPUs, serves the kubelet's DRA calls, and writes what became of claims into their status."""

    def __init__(
        self,
        node: str,
        policies: GpuPolicies,
        kubelet_folder: Path,
        api: Api,
        preparer: ClaimPreparer,
        watcher: GpuWatcher,
        parts: Supervisor,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._preparer = preparer
        self._watcher = watcher
        self._parts = parts
        self._log = log
        self._publisher = Publisher(api, node)
        self._publication = GpuPublication(self._publisher, policies)
        self._status = ClaimStatusWriter(ApiClaims(api), log)
        self._health = DraHealth(pool_name(node))
        endpoint = plugin_folder(kubelet_folder) / "dra.sock"
        self._plugin = plugin.DraPlugin(endpoint, preparer, self._health, log)
        self._registration = Registration(
            kubelet_folder / "plugins_registry" / f"{devices.DRIVER}-reg.sock",
            endpoint,
            name=devices.DRIVER,
            services=plugin.VERSIONS,
            log=log,
        )

    # ---- as a backend ----

    def owns(self, claim: PreparedClaim) -> bool:
        return isinstance(claim, PreparedResourceClaim)

    def offers(self, claim: PreparedClaim) -> bool:
        return self.owns(claim)

    async def serve_existing_pods(self) -> None:
        await self._plugin.start()
        await self._registration.start()

    async def offer_gpus(self) -> None:
        self._watcher.listen(self._publication.gpus_observed)
        self._watcher.listen(self._health.gpus_observed)
        self._preparer.on_prepared(self._status.enqueue)
        await self.serve_existing_pods()
        self._parts.add("publisher", self._publisher.run, Restart())
        self._parts.add("claim status", self._status.run, Restart())
        self._parts.add("claims against cluster", self._compare_regularly, Restart(longest=_COMPARE_SECONDS))

    async def unprepare_gone(self) -> None:
        await self._preparer.unprepare_gone()

    async def withdraw(self) -> None:
        """Removes the node's ResourceSlices."""
        try:
            await self._publisher.remove()
        except (ApiError, UnreachableError) as error:
            if isinstance(error, ApiError) and error.not_found:
                return  # a cluster that does not serve the kind has none
            self._log.warning("ResourceSlices of this node may be left", reason=str(error))

    async def stop(self) -> None:
        await self._registration.stop()
        await self._plugin.stop()

    # ---- its parts ----

    async def _compare_regularly(self) -> None:
        while True:
            try:
                await self._preparer.unprepare_gone()
            except ClaimUnreadableError as error:
                self._log.warning("claims are not compared with the cluster's", reason=str(error))
            await asyncio.sleep(_COMPARE_SECONDS)
