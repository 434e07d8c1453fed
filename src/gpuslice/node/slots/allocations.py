"""Containers that have slots of an extended resource, and the sessions behind them.

The kubelet says which slots a container gets, not whose the container is and not when it ends. Both are learnt later
from what it lists of its pods. A slot is given to another container only when the pod that had it is gone.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.node.claims.checkpoint import Phase, PreparedClaim, PreparedDevice, PreparedSession
from gpuslice.node.claims.claim_sessions import session_name
from gpuslice.node.errors import AgentError
from gpuslice.node.slots import slot_devices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import structlog

    from gpuslice.node.claims.checkpoint import Checkpoint
    from gpuslice.node.claims.claim_sessions import ClaimSessions
    from gpuslice.node.claims.preparing import Preparing
    from gpuslice.node.gpus.hardware import Gpu
    from gpuslice.node.slots.slot_devices import SlotResource

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
        return slot_devices.identity(self.resource, self.slots)


class SlotAllocations:
    """What containers have of the node's slots."""

    def __init__(
        self,
        preparing: Preparing,
        checkpoint: Checkpoint,
        sessions: ClaimSessions,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._preparing = preparing
        self._checkpoint = checkpoint
        self._sessions = sessions
        self._log = log
        self._missing: dict[str, int] = {}
        #: When each was first missing, by a clock that nobody sets.
        self._missing_since: dict[str, float] = {}

    async def allocate(self, resource: SlotResource, wanted: Sequence[str], gpus: Mapping[str, Gpu]) -> PreparedClaim:
        """A session for a container with these slots; what there was for the same slots was another's."""
        planned = _plan(resource, wanted, gpus)
        made = await self._preparing.carry_out(planned)
        self._log.info("slots allocated", resource=resource.name, slots=list(wanted), session_id=made.sessions[0].id)
        return made

    async def compare(
        self, listed: Sequence[ContainerSlots], resources: Mapping[str, SlotResource], gpus: Mapping[str, Gpu]
    ) -> None:
        """Learns from the kubelet's list which sessions are nobody's and whose the others are, and makes what was lost.

        What is given back comes first: it needs no space, and makes some.
        """
        await self.release_gone(listed)
        for container in listed:
            if container.resource not in resources:
                continue
            known = self._checkpoint.claims.get(container.uid)
            if known is None:  # the node was started anew, and its containers are about to be
                try:
                    known = await self.allocate(resources[container.resource], container.slots, gpus)
                except AgentError as error:
                    self._log.error("a container's slots are lost", pod=container.pod, reason=str(error))
                    continue
            self._tell_pod(known, container)

    def learn(self, listed: Sequence[ContainerSlots]) -> None:
        """Whose the sessions are, and nothing else: soon after an allocation, so that a short life is known, too."""
        for container in listed:
            known = self._checkpoint.claims.get(container.uid)
            if known is not None:
                self._tell_pod(known, container)

    async def release_gone(self, listed: Sequence[ContainerSlots]) -> None:
        """Undoes what no pod has any more. To be certain, that takes two lists."""
        found = {container.uid for container in listed}
        held = {slot for container in listed for slot in container.slots}
        for uid, claim in list(self._checkpoint.claims.items()):
            if claim.slots and uid not in found and self._is_over(claim, held):
                self._log.info("the pod is gone", namespace=claim.namespace, pod=claim.pod, session_id=uid)
                await self._preparing.undo(uid)
        for uid in [uid for uid in self._checkpoint.broken if uid.startswith(slot_devices.PREFIX) and uid not in found]:
            if self._is_missing(uid):
                self._log.info("the pod is gone", uid=uid)
                await self._preparing.undo(uid)
        still = (self._checkpoint.claims.keys() | self._checkpoint.broken.keys()) - found
        self._missing = {uid: count for uid, count in self._missing.items() if uid in still}
        self._missing_since = {uid: since for uid, since in self._missing_since.items() if uid in still}

    def _is_over(self, claim: PreparedClaim, held: set[str]) -> bool:
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
        return not self._sessions.processes(uid) and self._missing[uid] >= _CERTAIN

    def _tell_pod(self, claim: PreparedClaim, container: ContainerSlots) -> None:
        told = msgspec.structs.replace(
            claim, namespace=container.namespace, pod=container.pod, container=container.container
        )
        if told == claim:
            return
        try:
            self._checkpoint.put(told)
            self._sessions.tell_pod(told)
        except OSError as error:  # learnt again with the next list
            self._log.warning("a pod's name cannot be written down", pod=container.pod, reason=error.strerror)


def _plan(resource: SlotResource, wanted: Sequence[str], gpus: Mapping[str, Gpu]) -> PreparedClaim:
    by_gpu = slot_devices.by_gpu(wanted)
    if unknown := by_gpu.keys() - gpus.keys():
        raise AgentError("unknown_device", f"{resource.name}: this node has no GPU {', '.join(sorted(unknown))}")
    if len(by_gpu) > 1 and len(wanted) <= resource.slots_per_gpu:
        parts = ", ".join(f"{len(part)} of {gpu}" for gpu, part in sorted(by_gpu.items()))
        raise AgentError(
            "scattered",
            f"{resource.name}: no GPU of the node has {len(wanted)} slots left, only {parts}",
            remedy="delete the pod, so that it is scheduled again; the backend dra never scatters a slice",
        )
    uid = slot_devices.identity(resource.name, wanted)
    return PreparedClaim(
        namespace="",
        name=session_name(resource.name.rpartition("/")[2]),
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
                limit_bytes=slot_devices.memory(len(part), resource.slots_per_gpu, gpus[gpu].memory_bytes),
            )
            for gpu, part in by_gpu.items()
        ],
        sessions=[PreparedSession(request=REQUEST, id=uid, token=secrets.token_urlsafe(32))],
        slots=sorted(wanted),
        resource=resource.name,
        slots_per_gpu=resource.slots_per_gpu,
    )
