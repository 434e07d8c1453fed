"""Containers that have slots of an extended resource, and the sessions behind them.

The kubelet says which slots a container gets, not whose the container is and not when it ends. Both are learnt later
from what it lists of its pods. A slot is given to another container only when the pod that had it is gone.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuslice.node.claims.checkpoint import Phase, PreparedDevice, PreparedSession, PreparedSlots
from gpuslice.node.errors import AgentError
from gpuslice.node.slots import slot_choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import structlog

    from gpuslice.node.claims.preparing import ClaimPreparer
    from gpuslice.node.gpus.hardware import Gpu
    from gpuslice.node.slots.slot_choice import SlotResource

REQUEST: Final = "gpu"
#: The kubelet lists a pod a moment after it was answered, so one look that does not find it says nothing.
_CERTAIN: Final = 2
#: Init containers are never listed, and start and end when they will.
_UNLISTED_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class ContainerSlots:
    """A container as the kubelet lists it, with its slots of one resource."""

    namespace: str
    pod: str
    container: str
    resource: str
    slots: tuple[str, ...]

    @property
    def uid(self) -> str:
        return slot_choice.identity(self.resource, self.slots)


class SlotAllocations:
    """What containers have of the node's slots."""

    def __init__(self, preparer: ClaimPreparer, log: structlog.typing.FilteringBoundLogger) -> None:
        self._preparer = preparer
        self._log = log
        self._missing: dict[str, int] = {}
        #: When each was first missing, by a clock that cannot be set.
        self._missing_since: dict[str, float] = {}

    @property
    def prepared(self) -> dict[str, PreparedSlots]:
        """What containers have, by UID."""
        return {uid: claim for uid, claim in self._preparer.claims.items() if isinstance(claim, PreparedSlots)}

    async def prepare(self, resource: SlotResource, wanted: Sequence[str], gpus: Mapping[str, Gpu]) -> PreparedSlots:
        """A session for a container with these slots, in place of what another container had with the same slots."""
        made = await self._preparer.prepare_slots(_plan(resource, wanted, gpus))
        self._log.info("slots prepared", resource=resource.name, slots=list(wanted), session_id=made.sessions[0].id)
        return made

    async def compare(
        self, listed: Sequence[ContainerSlots], resources: Mapping[str, SlotResource], gpus: Mapping[str, Gpu]
    ) -> None:
        """Learns from the kubelet's list which pods are gone and which pods have the others, and makes what was lost.

        Unpreparing comes first: it needs no space, and makes some.
        """
        await self.unprepare_gone(listed)
        for container in listed:
            if container.resource not in resources:
                continue
            if container.uid not in self.prepared:  # the node was started anew, and its containers are about to be
                try:
                    await self.prepare(resources[container.resource], container.slots, gpus)
                except AgentError as error:
                    self._log.error("a container's slots are lost", pod=container.pod, reason=str(error))
                    continue
            await self._set_pod(container)

    async def learn_pods(self, listed: Sequence[ContainerSlots]) -> None:
        """Whose the sessions are, and nothing else: soon after an allocation, so that a short life is known, too."""
        for container in listed:
            await self._set_pod(container)

    async def unprepare_gone(self, listed: Sequence[ContainerSlots]) -> None:
        """Unprepares what no pod has any more. To be certain, that takes two lists."""
        found = {container.uid for container in listed}
        held = {slot for container in listed for slot in container.slots}
        for uid, claim in self.prepared.items():
            if uid not in found and self._is_over(claim, held):
                self._log.info("the pod is gone", namespace=claim.namespace, pod=claim.pod, session_id=uid)
                await self._preparer.unprepare(uid)
        for uid in [uid for uid in self._preparer.broken if uid.startswith(slot_choice.PREFIX) and uid not in found]:
            if self._is_missing(uid):
                self._log.info("the pod is gone", uid=uid)
                await self._preparer.unprepare(uid)
        still = (self._preparer.claims.keys() | self._preparer.broken.keys()) - found
        self._missing = {uid: count for uid, count in self._missing.items() if uid in still}
        self._missing_since = {uid: since for uid, since in self._missing_since.items() if uid in still}

    def _is_over(self, claim: PreparedSlots, held: set[str]) -> bool:
        if not self._is_missing(claim.uid):
            return False
        if claim.pod:
            return True
        missing_since = self._missing_since[claim.uid]
        return held.isdisjoint(claim.slots) and time.monotonic() - missing_since > _UNLISTED_SECONDS

    def _is_missing(self, uid: str) -> bool:
        """Whether no process is in it, and it was in none of the last lists."""
        self._missing[uid] = self._missing.get(uid, 0) + 1
        self._missing_since.setdefault(uid, time.monotonic())
        return not self._preparer.processes(uid) and self._missing[uid] >= _CERTAIN

    async def _set_pod(self, container: ContainerSlots) -> None:
        try:
            await self._preparer.set_pod(
                container.uid, namespace=container.namespace, pod=container.pod, container=container.container
            )
        except OSError as error:  # learnt again with the next list
            self._log.warning("a pod's name cannot be written down", pod=container.pod, reason=error.strerror)


def _plan(resource: SlotResource, wanted: Sequence[str], gpus: Mapping[str, Gpu]) -> PreparedSlots:
    by_gpu = slot_choice.by_gpu(wanted)
    if unknown := by_gpu.keys() - gpus.keys():
        raise AgentError("unknown_device", f"{resource.name}: this node has no GPU {', '.join(sorted(unknown))}")
    if len(by_gpu) > 1 and len(wanted) <= resource.slots_per_gpu:
        parts = ", ".join(f"{len(part)} of {gpu}" for gpu, part in sorted(by_gpu.items()))
        raise AgentError(
            "scattered",
            f"{resource.name}: no GPU of the node has {len(wanted)} slots left, only {parts}",
            remedy="delete the pod, so that it is scheduled again; the backend dra never scatters a slice",
        )
    uid = slot_choice.identity(resource.name, wanted)
    return PreparedSlots(
        uid=uid,
        phase=Phase.PREPARING,
        created=time.time(),
        devices=[
            PreparedDevice(
                request=REQUEST,
                pool="",
                device=gpu,
                uuid=gpu,
                model=gpus[gpu].product,
                limit_bytes=slot_choice.memory(len(part), resource.slots_per_gpu, gpus[gpu].memory_bytes),
            )
            for gpu, part in by_gpu.items()
        ],
        sessions=[PreparedSession(request=REQUEST, id=uid, token=secrets.token_urlsafe(32))],
        slots=sorted(wanted),
        resource=resource.name,
        slots_per_gpu=resource.slots_per_gpu,
    )
