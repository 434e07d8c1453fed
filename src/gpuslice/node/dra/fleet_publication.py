"""Tells the cluster of the node's GPUs, and of every change: as ResourceSlices, and as Events when one fails."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final, Literal, Protocol

import structlog

from gpuslice.kube.events import Regarding
from gpuslice.node.dra import resource_slices
from gpuslice.node.gpus.health import Illness, XidEvents
from gpuslice.node.gpus.nvml import NvmlUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.kube.events import Recorder
    from gpuslice.node.dra.resource_slices import SliceContent
    from gpuslice.node.gpus.fleet import Fleet
    from gpuslice.node.gpus.gpu_state import GpuState

_REFRESH_SECONDS: Final = 10.0
_XID_WAIT_MILLISECONDS: Final = 500


class Publishes(Protocol):
    """Takes what is to be published: gpuslice.node.dra.publishing, or nobody where the backend is another."""

    def publish(self, wanted: Sequence[SliceContent]) -> None: ...


class FleetPublication:
    """Publishes the fleet, and goes on to do so when a GPU changes or fails."""

    def __init__(self, fleet: Fleet, publisher: Publishes, recorder: Recorder, node: str) -> None:
        self._fleet = fleet
        self._publisher = publisher
        self._recorder = recorder
        # By their own name as UID, as the kubelet does: `kubectl describe node` looks for that.
        self._node = Regarding(api_version="v1", kind="Node", name=node, uid=node)
        self._changed = asyncio.Event()
        self._told: dict[str, Illness] = {}
        self._log = structlog.get_logger().bind(node=node)
        self.states: list[GpuState] = []
        self._published: list[GpuState] | None = None

    def changed(self) -> None:
        """Something may be different now: a partition was made, a GPU could not be switched."""
        self._changed.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        stop = threading.Event()
        listener: asyncio.Task[None] | None = None
        try:
            while True:
                self._changed.clear()
                try:
                    await self._refresh()
                    if listener is None or listener.done():
                        listener = asyncio.create_task(self._listen(stop))
                except NvmlUnavailableError as error:
                    self._log.warning("GPUs cannot be looked at; trying again", error=str(error))
                except Exception:  # noqa: BLE001 - whatever goes wrong once is told, and tried again
                    self._log.exception("GPUs cannot be looked at; trying again")
                try:
                    await asyncio.wait_for(self._changed.wait(), _REFRESH_SECONDS)
                except TimeoutError:
                    continue
        finally:
            stop.set()
            if listener is not None:
                await asyncio.gather(listener, return_exceptions=True)

    async def _refresh(self) -> None:
        states = await asyncio.to_thread(self._fleet.refresh)
        if states != self._published:
            self._publisher.publish(await asyncio.to_thread(resource_slices.build, states, self._fleet.policies))
            self._published = states
        self.states = states
        ill = {state.gpu.uuid: state.illness for state in self.states if state.illness is not None}
        for uuid in self._told.keys() - ill.keys():
            self._record("Normal", "GPUHealthy", f"{uuid} is in use again")
        for uuid in ill.keys() - self._told.keys():
            self._record("Warning", "GPUUnhealthy", f"{uuid} {ill[uuid].describe()}: no new pods get it")
        self._told = ill

    def _record(self, type_: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        self._log.warning(note, operation="health")
        self._recorder.record(self._node, type_, reason, "WatchHealth", note)

    async def _listen(self, stop: threading.Event) -> None:
        """Waits for errors in a thread of its own. What goes wrong ends it, and the next refresh starts it again."""
        loop = asyncio.get_running_loop()
        gpus = self._fleet.gpus

        def work() -> None:
            events = XidEvents(gpus)
            try:
                while not stop.is_set():
                    event = events.wait(_XID_WAIT_MILLISECONDS)
                    if event is not None and self._fleet.health.report(event.gpu_uuid, Illness(event.xid)):
                        loop.call_soon_threadsafe(self._changed.set)
            finally:
                events.close()

        try:
            await asyncio.to_thread(work)
        except (NvmlUnavailableError, OSError) as error:
            self._log.warning("errors of GPUs are not heard; trying again", error=str(error))
