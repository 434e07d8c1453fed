"""The backend `extended`: GPUs as extended resources, each GPU in exactly one of them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from gpuslice.model import devices
from gpuslice.node.errors import AgentError
from gpuslice.node.gpus.policies import GpuPolicies, Mode
from gpuslice.node.slots import pod_resources
from gpuslice.node.slots.plugin import DevicePlugin
from gpuslice.node.slots.slot_devices import SlotResource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import structlog

    from gpuslice.node.claims.checkpoint import PreparedClaim
    from gpuslice.node.gpus.gpu_state import GpuState
    from gpuslice.node.gpus.hardware import Gpu
    from gpuslice.node.slots.allocations import SlotAllocations

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


class ExtendedResources:
    """The node's device plugins. A GPU's policy says in which of them it is: shared in slots, whole, or in none."""

    def __init__(
        self,
        settings: ExtendedSettings,
        policies: GpuPolicies,
        kubelet_folder: Path,
        allocations: SlotAllocations,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._policies = policies
        self._kubelet_folder = kubelet_folder
        self._allocations = allocations
        self._log = log
        self._states: Sequence[GpuState] = ()
        self._stated = asyncio.Event()
        self._allocated = asyncio.Event()
        self._complaint = ""
        self._offers = [
            _Offer(resource, mode, DevicePlugin(kubelet_folder / "device-plugins", resource, self._allocate, log))
            for mode, resource in settings.resources.items()
        ]

    async def show(self, states: Sequence[GpuState]) -> None:
        """Offers the GPUs as they are now."""
        if states == self._states:
            return
        self._states = states
        for offer in self._offers:
            chosen = [state for state in states if self._policies.mode(state.gpu) is offer.mode]
            offer.gpus = {state.gpu.uuid: state.gpu for state in chosen}
            # What somebody else partitioned by hand cannot be shared now.
            unfit = {state.gpu.uuid for state in chosen if state.illness is not None or state.foreign}
            await offer.plugin.offer(offer.gpus, unfit)
        self._stated.set()

    async def _allocate(self, resource: SlotResource, wanted: Sequence[str]) -> PreparedClaim:
        (offer,) = (offer for offer in self._offers if offer.resource == resource)
        made = await self._allocations.allocate(resource, wanted, offer.gpus)
        self._allocated.set()
        return made

    async def run(self) -> None:
        """Until cancelled."""
        await self._stated.wait()
        plugins = [asyncio.create_task(offer.plugin.run()) for offer in self._offers]
        try:
            while True:
                await self._look()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._learn_of_the_new()
        finally:
            for plugin in plugins:
                plugin.cancel()
            await asyncio.gather(*plugins, return_exceptions=True)

    async def _learn_of_the_new(self) -> NoReturn:
        """A container may be gone at the next look, and who it was would never be known."""
        while True:
            await self._allocated.wait()
            self._allocated.clear()
            await asyncio.sleep(_SOON_SECONDS)
            with contextlib.suppress(AgentError):  # the next look tells
                self._allocations.learn(await pod_resources.containers(self._kubelet_folder))

    async def _look(self) -> None:
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
        except Exception:  # noqa: BLE001 - told, and tried again
            self._log.exception("slots are not compared with the kubelet's pods")
