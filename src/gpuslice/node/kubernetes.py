"""The agent as a node of Kubernetes: what serves the kubelet, put together and started in the right order.

A node has one backend at a time: its GPUs are ResourceSlices, or they are extended resources. So nothing is offered
twice. When the backend changes, or the name or the size of slots, nothing is offered until the pods that have GPUs the
old way are gone; they are served meanwhile, and can end.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gpuslice.kube import api
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.events import Recorder
from gpuslice.model import devices
from gpuslice.model.devices import pool_name
from gpuslice.model.policies import Backend
from gpuslice.node.claims import cdi
from gpuslice.node.claims.api_claims import ApiClaims
from gpuslice.node.claims.checkpoint import Checkpoint
from gpuslice.node.claims.claim_sessions import ClaimSessions
from gpuslice.node.claims.claim_status import Reporting
from gpuslice.node.claims.devices import NodeDevices
from gpuslice.node.claims.preparing import Preparing
from gpuslice.node.claims.resource_claims import ClaimUnreadableError
from gpuslice.node.dra import plugin
from gpuslice.node.dra.device_health import DraHealth
from gpuslice.node.dra.fleet_publication import FleetPublication
from gpuslice.node.dra.publishing import Publisher
from gpuslice.node.dra.registration import Registration
from gpuslice.node.errors import AgentError
from gpuslice.node.gpus.fleet import Fleet
from gpuslice.node.gpus.health import Health
from gpuslice.node.gpus.partitions import Partitions
from gpuslice.node.gpus.policies import GpuPolicies
from gpuslice.node.gpus.vendor_devices import VendorDevices
from gpuslice.node.slots import pod_resources
from gpuslice.node.slots.allocations import SlotAllocations
from gpuslice.node.slots.backend import ExtendedResources, ExtendedSettings
from gpuslice.node.usage.metrics_access import ClusterReviewer, MetricsAccess
from gpuslice.system import sockets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    import structlog

    from gpuslice.node.audit import Audit
    from gpuslice.node.claims.checkpoint import PreparedClaim
    from gpuslice.node.dra.resource_slices import SliceContent
    from gpuslice.node.gpus.gpu_state import GpuState
    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.state_folder import StateFolder

_COMPARE_SECONDS: Final = 300.0
_WAIT_SECONDS: Final = 2.0
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
    backend: Backend = Backend.DRA
    #: For a node that will not come back. Otherwise they stay, so that claims outlive an agent's restart.
    remove_slices_on_exit: bool = False
    metrics_access: MetricsAccess = MetricsAccess.TOKEN
    policies: GpuPolicies = field(default_factory=GpuPolicies)
    extended: ExtendedSettings = field(default_factory=ExtendedSettings)


class KubernetesNode:
    """Serves the kubelet of this node."""

    def __init__(
        self,
        settings: KubernetesSettings,
        environment: Mapping[str, str],
        registry: Registry,
        state: StateFolder,
        audit: Audit,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        if os.geteuid() != 0:
            raise AgentError("not_root", "only root can serve the kubelet", remedy="run the agent as root")
        self._settings = settings
        self._log = log
        self._state = state
        plugin_folder = settings.kubelet_folder / "plugins" / devices.DRIVER
        self._library_place = plugin_folder / "lib"
        self._cdi = cdi.CdiFolder(settings.cdi_folder)
        self._libraries = cdi.install_libraries(settings.libraries, self._library_place)
        self._vendor = VendorDevices(settings.cdi_folder, environment)
        self._api = api.connect(settings.kubeconfig, environment, _COMPONENT)
        self._recorder = Recorder(self._api, f"gpuslice.io/{_COMPONENT}", settings.node)
        claims = ApiClaims(self._api)
        self._reporting = Reporting(claims, log)
        partitions = Partitions(state.partitions)
        self._sessions = ClaimSessions(registry, state, self._cdi, self._libraries, audit)
        self._checkpoint = Checkpoint(state.prepared, state.single_checkpoint)
        self._preparing = Preparing(
            claims,
            NodeDevices(settings.node),
            partitions,
            self._sessions,
            self._checkpoint,
            log,
            prepared=self._reporting.prepared,
            partitioned=self._partitioned,
        )
        endpoint = plugin_folder / "dra.sock"
        self._health = DraHealth(pool_name(settings.node))
        self._plugin = plugin.DraPlugin(endpoint, self._preparing, self._health, log)
        self._registration = Registration(
            settings.kubelet_folder / "plugins_registry" / f"{devices.DRIVER}-reg.sock",
            endpoint,
            name=devices.DRIVER,
            services=plugin.VERSIONS,
            log=log,
        )
        self._slots = SlotAllocations(self._preparing, self._checkpoint, self._sessions, log)
        self._fleet = Fleet(settings.policies, partitions, Health(state.health), load=lambda: _load(registry))
        self._publication: FleetPublication | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._complaint = ""

    async def start(self) -> None:
        """Takes up what was, serves, and only then tells the kubelet so."""
        self._state.tenants.mkdir(mode=0o755, exist_ok=True)
        sockets.give_second_name(self._state.attach_socket, self._state.tenants / self._state.attach_socket.name)
        await self._preparing.recover()
        cdi.remove_unused_libraries(self._library_place, self._libraries, self._cdi)
        await asyncio.to_thread(self._vendor.refresh)
        self._start(self._recorder.run())
        if self._settings.backend is not Backend.DRA:
            self._start(self._withdraw())
        if await self._old_ones():
            self._start(self._wait_for_old_ones())
        else:
            await self._offer()

    def gpu_states(self) -> Sequence[GpuState]:
        """The node's GPUs, as they were when they were last looked at."""
        return () if self._publication is None else self._publication.states

    def metrics_reviewer(self) -> ClusterReviewer | None:
        """What decides on the tokens of scrapers; None where metrics are open."""
        closed = self._settings.metrics_access is MetricsAccess.TOKEN
        return ClusterReviewer(self._api, self._log) if closed else None

    async def _offer(self) -> None:
        if self._settings.backend is Backend.DRA:
            await self._start_claims()
        else:
            self._start_slots()

    async def _start_claims(self) -> None:
        publisher = Publisher(self._api, self._settings.node)
        self._publish(publisher.publish, self._health.show)
        await self._plugin.start()
        await self._registration.start()
        for work in (self._reporting.run(), self._compare(), publisher.run()):
            self._start(work)

    def _start_slots(self) -> None:
        extended = ExtendedResources(
            self._settings.extended, self._settings.policies, self._settings.kubelet_folder, self._slots, self._log
        )
        self._publish(_nowhere, extended.show)
        self._start(extended.run())

    def _publish(
        self,
        publish: Callable[[Sequence[SliceContent]], None],
        show: Callable[[Sequence[GpuState]], Awaitable[None]],
    ) -> None:
        """Looks at the GPUs from now on, and tells both each time."""
        looked = asyncio.Event()
        publication = FleetPublication(self._fleet, _Looking(publish, looked), self._recorder, self._settings.node)
        self._publication = publication

        async def tell() -> None:
            while True:
                await looked.wait()
                looked.clear()
                await show(publication.states)

        self._start(publication.run())
        self._start(tell())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _wait_for_old_ones(self) -> None:
        """A GPU must not be offered while pods that got it otherwise are on it."""
        claimed = any(not claim.slots for claim in self._unlike_now())
        if claimed:  # a pod with claims can only end while somebody undoes them
            await self._plugin.start()
            await self._registration.start()
        told = ""
        while old := await self._old_ones():
            pods = ", ".join(sorted({f"{claim.namespace}/{claim.pod or claim.name}" for claim in old})[:8])
            if pods != told:
                told = pods
                self._log.warning(
                    "nothing is offered until pods that have GPUs through the other backend, or in slots of another "
                    "name or size, are gone: drain the node, or run the agent as before",
                    pods=pods,
                )
            await asyncio.sleep(_WAIT_SECONDS)
        try:
            if claimed:
                await self._registration.stop()
                await self._plugin.stop()
            await self._offer()
        except Exception:
            self._log.exception("the GPUs cannot be offered: start the agent anew")  # nobody else hears of it
            raise

    async def _old_ones(self) -> list[PreparedClaim]:
        """What was prepared otherwise than it would be now, and is not known to be gone."""
        try:
            if self._settings.backend is not Backend.DRA:
                await self._preparing.compare_with_cluster()
            if any(claim.slots for claim in self._unlike_now()):
                await self._slots.release_gone(await pod_resources.containers(self._settings.kubelet_folder))
        except AgentError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                self._log.warning("cannot tell whether pods are gone", reason=str(error))
        except Exception:  # noqa: BLE001 - told, and tried again: what is not known to be gone is there
            self._log.exception("cannot tell whether pods are gone")
        return self._unlike_now()

    def _unlike_now(self) -> list[PreparedClaim]:
        by_claims = self._settings.backend is Backend.DRA
        sizes = {resource.name: resource.slots_per_gpu for resource in self._settings.extended.resources.values()}
        return [
            claim
            for claim in self._checkpoint.claims.values()
            if bool(claim.slots) is by_claims
            or (claim.slots and (claim.slots_per_gpu or sizes.get(claim.resource)) != sizes.get(claim.resource))
        ]

    async def _withdraw(self) -> None:
        """Removes what was published with the backend dra."""
        try:
            await Publisher(self._api, self._settings.node).remove()
        except (ApiError, UnreachableError) as error:
            self._log.warning("ResourceSlices of this node may be left", reason=str(error))

    async def _partitioned(self) -> None:
        await asyncio.to_thread(self._vendor.refresh)
        if self._publication is not None:
            self._publication.changed()

    async def _compare(self) -> None:
        """Whatever goes wrong once is told, and tried again."""
        while True:
            try:
                await self._preparing.compare_with_cluster()
            except ClaimUnreadableError as error:
                self._log.warning("claims are not compared with the cluster's", reason=str(error))
            except Exception:  # noqa: BLE001 - see above
                self._log.exception("claims are not compared with the cluster's")
            await asyncio.sleep(_COMPARE_SECONDS)

    async def stop(self) -> None:
        """The kubelet first learns that the plugin is gone. What was prepared stays for the next agent."""
        await self._registration.stop()
        await self._plugin.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._settings.remove_slices_on_exit:
            await self._withdraw()
        await self._api.close()
        (self._state.tenants / self._state.attach_socket.name).unlink(missing_ok=True)


@dataclass
class _Looking:
    """Stands between the look at the GPUs and the ResourceSlices."""

    forward: Callable[[Sequence[SliceContent]], None]
    looked: asyncio.Event

    def publish(self, wanted: Sequence[SliceContent]) -> None:
        self.forward(wanted)
        self.looked.set()


def _nowhere(_wanted: Sequence[SliceContent]) -> None:
    """Where GPUs are extended resources, there are no ResourceSlices."""


def _load(registry: Registry) -> dict[str, int]:
    """What sessions may have of each GPU."""
    found: dict[str, int] = {}
    for session in list(registry.sessions.values()):
        for gpu in session.record.gpus:
            found[gpu.uuid] = found.get(gpu.uuid, 0) + gpu.limit_bytes
    return found
