"""The backend `extended`: GPUs as extended resources, each GPU in exactly one of them, given out in slots."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from gpuslice.model import devices
from gpuslice.node.claims.checkpoint import PreparedSlots
from gpuslice.node.errors import AgentError
from gpuslice.node.gpus.policies import GpuPolicies, Mode
from gpuslice.node.slots import pod_resources
from gpuslice.node.slots.plugin import DevicePlugin
from gpuslice.node.slots.slot_choice import SlotResource
from gpuslice.node.slots.slot_sessions import SlotAllocations
from gpuslice.system.supervised.supervision import Restart

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import structlog

    from gpuslice.node.claims.checkpoint import PreparedClaim
    from gpuslice.node.claims.preparing import ClaimPreparer
    from gpuslice.node.gpus.gpu_state import GpuState
    from gpuslice.node.gpus.gpu_watcher import GpuWatcher
    from gpuslice.node.gpus.hardware import Gpu
    from gpuslice.system.supervised.supervision import Supervisor

_LOOK_SECONDS: Final = 10.0
#: After an allocation: the kubelet lists the container by then.
_SOON_SECONDS: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class ExtendedSettings:
    """What the resources are called, and how many slots a shared GPU has."""

    shared_resource: str = devices.SHARED_RESOURCE
    whole_resource: str = devices.WHOLE_RESOURCE
    slots_per_gpu: int = devices.SLOTS_PER_GPU

    @property
    def resources(self) -> dict[Mode, SlotResource]:
        """A GPU that is given out whole has one slot."""
        return {
            Mode.SHARE: SlotResource(self.shared_resource, self.slots_per_gpu),
            Mode.WHOLE: SlotResource(self.whole_resource, 1),
        }


@dataclass
class _Offer:
    resource: SlotResource
    mode: Mode
    plugin: DevicePlugin
    gpus: dict[str, Gpu] = field(default_factory=dict)


class SlotsBackend:
    """The node's device plugins. A GPU's policy says in which of them it is: shared in slots, whole, or in none."""

    def __init__(
        self,
        settings: ExtendedSettings,
        policies: GpuPolicies,
        kubelet_folder: Path,
        preparer: ClaimPreparer,
        watcher: GpuWatcher,
        parts: Supervisor,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._policies = policies
        self._kubelet_folder = kubelet_folder
        self._allocations = SlotAllocations(preparer, log)
        self._watcher = watcher
        self._parts = parts
        self._log = log
        self._states: Sequence[GpuState] = ()
        self._observed = asyncio.Event()
        self._allocated = asyncio.Event()
        self._complaint = ""
        self._slots_per_gpu = {resource.name: resource.slots_per_gpu for resource in settings.resources.values()}
        self._offers = [
            _Offer(resource, mode, DevicePlugin(kubelet_folder / "device-plugins", resource, self._prepare, log))
            for mode, resource in settings.resources.items()
        ]

    async def resources(self) -> set[str]:
        """Those that have GPUs now."""
        await self._observed.wait()
        return {offer.resource.name for offer in self._offers if offer.gpus}

    # ---- as a backend ----

    def owns(self, claim: PreparedClaim) -> bool:
        return isinstance(claim, PreparedSlots)

    def offers(self, claim: PreparedClaim) -> bool:
        """Slots of a resource that is not offered, or of another size, would be counted wrongly among those of now."""
        if not isinstance(claim, PreparedSlots):
            return False
        offered = self._slots_per_gpu.get(claim.resource)
        return (claim.slots_per_gpu or offered) == offered

    async def serve_existing_pods(self) -> None:
        """A pod with slots ends without a call to the device plugin."""

    async def offer_gpus(self) -> None:
        self._watcher.listen(self._gpus_observed)
        for offer in self._offers:
            self._parts.add(f"device plugin {offer.resource.name}", partial(self._serve, offer), Restart(longest=10.0))
        self._parts.add("slots against pods", self._compare_regularly, Restart(longest=_LOOK_SECONDS))

    async def unprepare_gone(self) -> None:
        if self._allocations.prepared:
            await self._allocations.unprepare_gone(await pod_resources.containers(self._kubelet_folder))

    async def withdraw(self) -> None:
        """A device plugin publishes nothing that outlives its connection to the kubelet."""

    async def stop(self) -> None:
        """The device plugins are parts, and end with their supervisor."""

    # ---- its parts ----

    async def _gpus_observed(self, states: Sequence[GpuState]) -> None:
        """Offers the GPUs as they are now."""
        if states == self._states:
            return
        for offer in self._offers:
            chosen = [state for state in states if self._policies.mode(state.gpu) is offer.mode]
            offer.gpus = {state.gpu.uuid: state.gpu for state in chosen}
            # A GPU that was partitioned by hand cannot be shared now.
            unfit = {state.gpu.uuid for state in chosen if state.illness is not None or state.foreign}
            await offer.plugin.offer(offer.gpus, unfit)
        self._states = states
        self._observed.set()

    async def _prepare(self, resource: SlotResource, wanted: Sequence[str]) -> PreparedSlots:
        (offer,) = (offer for offer in self._offers if offer.resource == resource)
        made = await self._allocations.prepare(resource, wanted, offer.gpus)
        self._allocated.set()
        return made

    async def _serve(self, offer: _Offer) -> None:
        await self._observed.wait()
        await offer.plugin.run()

    async def _compare_regularly(self) -> None:
        await self._observed.wait()
        while True:
            await self._compare()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._learn_new_pods()

    async def _learn_new_pods(self) -> NoReturn:
        """A container may be gone at the next look, and its pod would never be known."""
        while True:
            await self._allocated.wait()
            self._allocated.clear()
            await asyncio.sleep(_SOON_SECONDS)
            with contextlib.suppress(AgentError):  # the next look tells
                await self._allocations.learn_pods(await pod_resources.containers(self._kubelet_folder))

    async def _compare(self) -> None:
        try:
            listed = await pod_resources.containers(self._kubelet_folder)
            await self._allocations.compare(
                listed,
                {offer.resource.name: offer.resource for offer in self._offers},
                {uuid: gpu for offer in self._offers for uuid, gpu in offer.gpus.items()},
            )
            self._complaint = ""
        except AgentError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                self._log.warning("slots are not compared with the kubelet's pods", reason=str(error))
