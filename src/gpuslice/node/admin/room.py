"""How much of a GPU may still be promised to sessions that are made by hand.

The limits of all sessions on a GPU together are held to its memory: a session that fills its limit is never refused by
the driver because of another. Claims are held to that by the scheduler, which does not know of sessions by hand: those
get nothing of a GPU that is offered to the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.model.values.quantities import format_bytes
from gpuslice.node.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuslice.node.gpus.nvml import GpuInfo
    from gpuslice.node.sessions.record import GpuRecord
    from gpuslice.node.sessions.registry import Promise, Registry

_NAMED: Final = 5


class Room:
    """What is left of the machine's GPUs. It looks at what is there now, so it is the same after a restart."""

    def __init__(
        self, registry: Registry, *, reserve_bytes: int = 0, offered: Callable[[GpuInfo], bool] = lambda _gpu: False
    ) -> None:
        self._registry = registry
        self._reserve_bytes = reserve_bytes
        self._offered = offered

    def check(self, wanted: Sequence[GpuRecord], machine: Sequence[GpuInfo], *, instead_of: str = "") -> None:
        """Refuses what would promise more than there is.

        `instead_of` is the id of a session that has these limits from now on, in place of those it had. What is
        allowed counts as soon as the registry is told: nothing may be awaited in between.
        """
        by_uuid = {gpu.uuid: gpu for gpu in machine}
        for record in wanted:
            device = by_uuid.get(record.uuid)
            if device is None or not device.memory_bytes:
                continue  # where NVML does not answer, there is nothing to reckon with
            whole = _gpu_of(device, machine)
            if self._offered(whole):
                raise AgentError(
                    "offered",
                    f"GPU {whole.index} is offered to the cluster, whose scheduler does not know of sessions by hand",
                    field="gpus",
                    remedy="keep the GPU for them with the policy `reserve`, or say --overcommit",
                )
            for place in dict.fromkeys((device, whole)):
                self._check_place(place, record.limit_bytes, machine, instead_of)

    def _check_place(self, place: GpuInfo, size: int, machine: Sequence[GpuInfo], instead_of: str) -> None:
        parts = {gpu.uuid for gpu in machine if gpu is place or _gpu_of(gpu, machine) is place}
        promises = [each for each in self._registry.promises(parts) if not instead_of or each.session_id != instead_of]
        kept = 0 if place.mig else self._reserve_bytes
        left = max(0, place.memory_bytes - kept - sum(each.size for each in promises))
        if size <= left:
            return
        what = f"{'partition' if place.mig else 'GPU'} {place.index} has {format_bytes(place.memory_bytes)}"
        if kept:
            what += f", of which {format_bytes(kept)} are kept back"
        if promises:
            what += f", and {format_bytes(sum(each.size for each in promises))} are promised to {_named(promises)}"
        remedy = f"give at most {format_bytes(left).replace(' ', '')}, " if left else ""
        raise AgentError(
            "no_room",
            f"{what}: {format_bytes(left)} are left, not {format_bytes(size)}",
            field="limit",
            remedy=f"{remedy}release a session, or say --overcommit",
        )


def _gpu_of(device: GpuInfo, machine: Sequence[GpuInfo]) -> GpuInfo:
    """The GPU that a partition is of; a GPU itself."""
    index = device.index.partition(":")[0]
    return next((gpu for gpu in machine if not gpu.mig and gpu.index == index), device) if device.mig else device


def _named(promises: Sequence[Promise]) -> str:
    """The largest by name, and how many others there are."""
    largest = sorted(promises, key=lambda promise: promise.size, reverse=True)
    named = [f"{promise.whose} ({format_bytes(promise.size)})" for promise in largest[:_NAMED]]
    others = [f"{len(largest) - _NAMED} others"] if len(largest) > _NAMED else []
    return ", ".join([*named, *others])
