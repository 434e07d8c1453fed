"""The agent as a node of Kubernetes: what serves the kubelet, put together and started in the right order.

A node offers its GPUs through one backend at a time (gpuslice.node.backend), and nothing until the pods that have GPUs
in another way are gone (gpuslice.node.draining).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuslice.kube import server_version
from gpuslice.kube.client import api
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.events import Recorder
from gpuslice.model import devices
from gpuslice.model.policies import Backend
from gpuslice.node.claims import cdi
from gpuslice.node.claims.checkpoint import Checkpoint
from gpuslice.node.claims.claim_sessions import ClaimSessions
from gpuslice.node.claims.claims_client import ApiClaims
from gpuslice.node.claims.devices import NodeDevices
from gpuslice.node.claims.preparing import ClaimPreparer
from gpuslice.node.dra import support
from gpuslice.node.dra.backend import DraBackend, plugin_folder
from gpuslice.node.draining import Drain
from gpuslice.node.errors import AgentError
from gpuslice.node.gpus.gpu_watcher import GpuStates, GpuWatcher
from gpuslice.node.gpus.health import Health
from gpuslice.node.gpus.health_events import GpuHealthEvents
from gpuslice.node.gpus.partitions import Partitions
from gpuslice.node.gpus.policies import GpuPolicies
from gpuslice.node.gpus.vendor_devices import VendorDevices
from gpuslice.node.kubelet.rival_plugins import RivalPlugins
from gpuslice.node.slots.backend import ExtendedSettings, SlotsBackend
from gpuslice.node.usage.metrics_access import ClusterReviewer, MetricsAccess
from gpuslice.system import sockets
from gpuslice.system.supervised.backoff import Backoff
from gpuslice.system.supervised.supervision import END_PROCESS, Restart
from gpuslice.system.supervised.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    import structlog

    from gpuslice.node.audit import Audit
    from gpuslice.node.backend import NodeBackend
    from gpuslice.node.disk import DiskThread
    from gpuslice.node.gpus.gpu_state import GpuState
    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.state_folder import StateFolder
    from gpuslice.system.supervised.supervision import Supervisor

_COMPONENT: Final = "agent"


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """What an agent is started with that serves a kubelet."""

    node: str
    #: The interposer's, in the order in which they are loaded.
    libraries: tuple[Path, ...]
    kubelet_folder: Path
    cdi_folder: Path
    kubeconfig: Path | None = None
    #: None: by claims where the cluster serves them, else in slots.
    backend: Backend | None = None
    #: For a node that will not come back. Otherwise they stay, so that claims outlive an agent's restart.
    remove_slices_on_exit: bool = False
    metrics_access: MetricsAccess = MetricsAccess.TOKEN
    policies: GpuPolicies = field(default_factory=GpuPolicies)
    extended: ExtendedSettings = field(default_factory=ExtendedSettings)
    #: Resources in a domain of GPUs that are none.
    other_resources: tuple[str, ...] = devices.OTHER_RESOURCES


class KubernetesNode:
    """Serves the kubelet of this node. Its background work are parts of the agent's supervisor."""

    def __init__(
        self,
        settings: KubernetesSettings,
        environment: Mapping[str, str],
        registry: Registry,
        state: StateFolder,
        audit: Audit,
        disk: DiskThread,
        parts: Supervisor,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        if os.geteuid() != 0:
            raise AgentError("not_root", "only root can serve the kubelet", remedy="run the agent as root")
        self._settings = settings
        self._log = log
        self._state = state
        self._parts = parts
        self._library_folder = plugin_folder(settings.kubelet_folder) / "lib"
        self._cdi = cdi.CdiFolder(settings.cdi_folder)
        self._libraries = cdi.install_libraries(settings.libraries, self._library_folder)
        self._vendor = VendorDevices(settings.cdi_folder, environment)
        self._api = api.connect(settings.kubeconfig, environment, _COMPONENT)
        self._recorder = Recorder(self._api, f"gpuslice.io/{_COMPONENT}", settings.node)
        partitions = Partitions(state.partitions)
        self._preparer = preparer = ClaimPreparer(
            ApiClaims(self._api),
            NodeDevices(settings.node),
            partitions,
            ClaimSessions(registry, state, self._cdi, self._libraries, audit, disk),
            Checkpoint(state.prepared, state.single_checkpoint),
            disk,
            log,
        )
        preparer.on_partitions_changed(self._partitions_changed)
        gpus = GpuStates(settings.policies, partitions, Health(state.health), load=lambda: _load(registry))
        self._watcher = watcher = GpuWatcher(gpus)
        watcher.listen(GpuHealthEvents(self._recorder, settings.node).gpus_observed)
        self._dra = DraBackend(
            settings.node, settings.policies, settings.kubelet_folder, self._api, preparer, watcher, parts, log
        )
        self._slots = SlotsBackend(
            settings.extended, settings.policies, settings.kubelet_folder, preparer, watcher, parts, log
        )
        self.rivals: Final = RivalPlugins(
            self._api,
            settings.node,
            settings.kubelet_folder,
            self._recorder,
            own=self._own_resources,
            others=settings.other_resources,
        )
        self._offering = asyncio.Event()
        #: None until it is known.
        self._backend: NodeBackend | None = None

    async def start(self) -> None:
        """Takes up what was, serves, and only then tells the kubelet so."""
        self._state.tenants.mkdir(mode=0o755, exist_ok=True)
        sockets.give_second_name(self._state.attach_socket, self._state.tenants / self._state.attach_socket.name)
        await self._preparer.recover()
        cdi.remove_unused_libraries(self._library_folder, self._libraries, self._cdi)
        await in_thread(self._vendor.refresh, "vendor-devices")
        self._parts.add("events", self._recorder.run, Restart())
        self._parts.add("server version", self._check_version, Restart(), endless=False)
        self._rivals_health = self._parts.add("other plugins", self._look_for_rivals, Restart())
        self._parts.add("GPU watcher", self._watcher.run, Restart(longest=10.0))
        self._parts.add("GPU errors", self._watcher.watch_errors, Restart(longest=10.0))
        backend = self._settings.backend or await self._backend_of_pods() or await self._backend_of_cluster()
        if backend is None:
            self._parts.add("backend", self._find_backend, END_PROCESS, endless=False)
        else:
            await self._serve_by(backend)

    async def _check_version(self) -> None:
        server_version.check(await server_version.ask(self._api))

    async def _own_resources(self) -> Collection[str]:
        """What the kubelet counts that is ours. Returns when the node offers its GPUs: until then none is promised."""
        await self._offering.wait()
        return await self._slots.resources() if self._backend is self._slots else ()

    async def _look_for_rivals(self) -> None:
        await self.rivals.run(self._rivals_health)

    async def _backend_of_pods(self) -> Backend | None:
        """As the node's pods have their GPUs: a change would keep new pods waiting until the last of them ends."""
        with suppress(AgentError):  # the kubelet cannot tell now: a pod that may be gone counts
            await self._slots.unprepare_gone()
        if any(map(self._slots.owns, self._preparer.claims.values())):
            return Backend.EXTENDED
        return Backend.DRA if self._preparer.claims else None

    async def _backend_of_cluster(self) -> Backend | None:
        """What the cluster serves. None if that cannot be told now."""
        try:
            reason = await support.why_no_claims(self._api, self._settings.node)
        except (ApiError, UnreachableError) as error:
            self._log.warning("whether GPUs are offered by claims or in slots is not known yet", error=str(error))
            return None
        if reason:
            self._log.info("the node's GPUs are offered in slots: claims are not served", reason=reason)
        return Backend.EXTENDED if reason else Backend.DRA

    async def _find_backend(self) -> None:
        backoff = Backoff()
        while (backend := await self._backend_of_cluster()) is None:
            await backoff.wait()
        await self._serve_by(backend)

    async def _serve_by(self, backend: Backend) -> None:
        uses_claims = backend is Backend.DRA
        self._log.info("the node offers its GPUs", backend=str(backend))
        chosen: NodeBackend = self._dra if uses_claims else self._slots
        other: NodeBackend = self._slots if uses_claims else self._dra
        self._backend = chosen
        self._parts.add("withdrawal", other.withdraw, Restart(), endless=False)
        drain = Drain(chosen, other, self._preparer, self._log)
        if await drain.is_needed():
            self._parts.add("drain", partial(self._drain_and_offer, drain, chosen), Restart(), endless=False)
        else:
            await self._offer(chosen)

    async def _drain_and_offer(self, drain: Drain, chosen: NodeBackend) -> None:
        await drain.drain_other_backend()
        # Half of an offer cannot be made anew by this process; the next one begins with nothing offered.
        self._parts.add("offer", partial(self._offer, chosen), END_PROCESS, endless=False)

    async def _offer(self, chosen: NodeBackend) -> None:
        await chosen.offer_gpus()
        self._offering.set()

    def gpu_states(self) -> Sequence[GpuState]:
        """The node's GPUs, as they were at the last look."""
        return self._watcher.latest

    def metrics_reviewer(self) -> ClusterReviewer | None:
        """What decides on the tokens of scrapers; None where metrics are open."""
        closed = self._settings.metrics_access is MetricsAccess.TOKEN
        return ClusterReviewer(self._api, self._log) if closed else None

    async def _partitions_changed(self) -> None:
        await in_thread(self._vendor.refresh, "vendor-devices")
        self._watcher.look_again()

    async def stop(self) -> None:
        """The kubelet first learns that the plugin is gone. What was prepared stays for the next agent."""
        await self._dra.stop()
        if self._backend is not None:
            await self._backend.stop()

    async def close(self) -> None:
        """After the parts ended."""
        if self._settings.remove_slices_on_exit:
            await self._dra.withdraw()
        await self._api.close()
        (self._state.tenants / self._state.attach_socket.name).unlink(missing_ok=True)


def _load(registry: Registry) -> dict[str, int]:
    """What sessions may have of each GPU."""
    found: dict[str, int] = {}
    for session in list(registry.sessions.values()):
        for gpu in session.record.gpus:
            found[gpu.uuid] = found.get(gpu.uuid, 0) + gpu.limit_bytes
    return found
