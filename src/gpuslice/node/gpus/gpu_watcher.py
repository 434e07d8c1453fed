"""The node's GPUs over time: what they are, what is wrong with them, and telling listeners of every look at them."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from gpuslice.node.gpus import inventory
from gpuslice.node.gpus.gpu_state import GpuState
from gpuslice.node.gpus.health import Illness, XidEvents
from gpuslice.node.gpus.nvml import NvmlUnavailableError
from gpuslice.node.gpus.policies import Placement
from gpuslice.system.supervised.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from gpuslice.node.gpus.hardware import Gpu, GpuInstance
    from gpuslice.node.gpus.health import Health
    from gpuslice.node.gpus.partitions import Partitions
    from gpuslice.node.gpus.policies import GpuPolicies

    #: Is told the state of all GPUs after every look, also when nothing changed.
    GpuListener = Callable[[Sequence[GpuState]], Awaitable[None]]

_REFRESH_SECONDS: Final = 10.0
_XID_WAIT_MILLISECONDS: Final = 500


def no_load() -> Mapping[str, int]:
    return {}


class GpuStates:
    """Everything that is known of the GPUs. Its calls wait for NVML, and one thread at a time makes them."""

    def __init__(
        self,
        policies: GpuPolicies,
        partitions: Partitions,
        health: Health,
        *,
        load: Callable[[], Mapping[str, int]] = no_load,
        sysfs: Path = inventory.SYSFS,
    ) -> None:
        self.policies: Final = policies
        self.health: Final = health
        self._partitions = partitions
        self._load = load
        self._sysfs = sysfs
        #: As they were when they last answered: a GPU that is lost is still known, and published as unfit.
        self._known: dict[str, Gpu] = {}

    @property
    def gpus(self) -> list[Gpu]:
        """What `published_devices.device_named` needs to find the device of a claim."""
        return list(self._known.values())

    def refresh(self) -> list[GpuState]:
        """Looks at the GPUs."""
        answering = inventory.read(self._sysfs)
        self.health.compare(self._known, answering)
        self._known = self._known | {gpu.uuid: gpu for gpu in answering}
        illnesses = self.health.illnesses()
        load = self._load() if self.policies.placement is Placement.SPREAD else {}  # else it changes nothing
        return [
            GpuState(
                gpu=gpu,
                foreign=self._foreign(gpu),
                illness=illnesses.get(gpu.uuid),
                switchable=gpu.uuid not in self._partitions.unswitchable,
                load=load.get(gpu.uuid, 0),
            )
            for gpu in sorted(self._known.values(), key=lambda gpu: gpu.index)
        ]

    def _foreign(self, gpu: Gpu) -> tuple[GpuInstance, ...]:
        ours = {(one.profile, one.start) for one in self._partitions.ours() if one.gpu_uuid == gpu.uuid}
        return tuple(one for one in gpu.instances if (one.profile, one.placement.start) not in ours)


class GpuWatcher:
    """Looks at the GPUs regularly, at once when one reports an error or `look_again` is called, and tells listeners.

    `run` and `watch_errors` are two parts for a supervisor. NVML answers in threads.
    """

    def __init__(self, gpus: GpuStates, *, refresh_seconds: float = _REFRESH_SECONDS) -> None:
        self._gpus = gpus
        self._refresh_seconds = refresh_seconds
        self._listeners: list[GpuListener] = []
        self._look_again = asyncio.Event()
        self._known = asyncio.Event()
        self._log = structlog.get_logger()
        #: As the GPUs were at the last look.
        self.latest: list[GpuState] = []

    def listen(self, listener: GpuListener) -> None:
        """Tells the listener of every look from now on, and of the first one soon."""
        self._listeners.append(listener)
        self._look_again.set()

    def look_again(self) -> None:
        """Something may be different now: a partition was made, a GPU could not be switched."""
        self._look_again.set()

    async def run(self) -> None:
        """Until it is cancelled. A failure that is not NVML's is for the supervisor."""
        while True:
            self._look_again.clear()
            try:
                self.latest = await in_thread(self._gpus.refresh, "gpu-watcher")
            except NvmlUnavailableError as error:
                self._log.warning("GPUs cannot be looked at; trying again", error=str(error))
            else:
                self._known.set()
                for listener in self._listeners:
                    await listener(self.latest)
            try:
                await asyncio.wait_for(self._look_again.wait(), self._refresh_seconds)
            except TimeoutError:
                continue

    async def watch_errors(self) -> None:
        """Until it is cancelled: waits for errors that GPUs report (XIDs), in a thread that ends with it."""
        while True:
            await self._known.wait()
            stop = threading.Event()
            wait = partial(self._wait_for_errors, stop, asyncio.get_running_loop())
            work = asyncio.ensure_future(in_thread(wait, "gpu-errors"))
            try:
                await asyncio.shield(work)
            except (NvmlUnavailableError, OSError) as error:
                self._log.warning("errors of GPUs are not heard; trying again", error=str(error))
            finally:
                stop.set()
                await asyncio.wait((work,))
            await asyncio.sleep(self._refresh_seconds)

    def _wait_for_errors(self, stop: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        events = XidEvents(self._gpus.gpus)
        try:
            while not stop.is_set():
                event = events.wait(_XID_WAIT_MILLISECONDS)
                if event is not None and self._gpus.health.report(event.gpu_uuid, Illness(event.xid)):
                    loop.call_soon_threadsafe(self._look_again.set)
        finally:
            events.close()
