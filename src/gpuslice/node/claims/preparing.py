"""From an allocated claim to a slice that containers can be started with, and back.

The order of the steps is what makes a crash anywhere repairable: the checkpoint says first what is going to be, then
partitions, sessions and the CDI spec are made, each in a way that can be repeated, and only then is the claim prepared
and the kubelet answered. Whatever is on the node and in no checkpoint is a leftover. Each step is on the disk before
the next one begins; the disk thread makes the writes.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from gpuslice.node.claims.checkpoint import (
    PartitionPlace,
    Phase,
    PreparedClaim,
    PreparedDevice,
    PreparedResourceClaim,
    PreparedSession,
    PreparedSlots,
)
from gpuslice.node.claims.devices import no_nvml
from gpuslice.node.claims.resource_claims import ClaimGoneError
from gpuslice.node.errors import AgentError
from gpuslice.node.gpus.nvml import NvmlUnavailableError
from gpuslice.node.sessions import page
from gpuslice.node.sessions.registry import storage_error
from gpuslice.system.supervised.tasks import run_to_completion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    import structlog

    from gpuslice.node.claims.checkpoint import Checkpoint
    from gpuslice.node.claims.claim_sessions import ClaimSessions
    from gpuslice.node.claims.devices import NodeDevice, NodeDevices
    from gpuslice.node.claims.resource_claims import Allocated, Claim, ClaimReference, Claims
    from gpuslice.node.disk import DiskThread
    from gpuslice.node.gpus.partitions import Partitions

_Kind = TypeVar("_Kind", bound=PreparedClaim)

_UID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,62}", re.ASCII)


class ClaimPreparer:
    """Prepares and unprepares claims; each at most once at a time, different ones side by side.

    It owns the checkpoint: no other part of the agent writes it.
    """

    def __init__(
        self,
        claims: Claims,
        devices: NodeDevices,
        partitions: Partitions,
        sessions: ClaimSessions,
        checkpoint: Checkpoint,
        disk: DiskThread,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._claims = claims
        self._devices = devices
        self._partitions = partitions
        self._sessions = sessions
        self._checkpoint = checkpoint
        self._disk = disk
        self._log = log
        self._prepared_listeners: list[Callable[[PreparedResourceClaim], None]] = []
        self._partition_listeners: list[Callable[[], Awaitable[None]]] = []
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        #: Held from the check that partitions are free until the checkpoint says who has them.
        self._reserving = asyncio.Lock()

    def on_prepared(self, listener: Callable[[PreparedResourceClaim], None]) -> None:
        """Calls the listener with every ResourceClaim that was prepared."""
        self._prepared_listeners.append(listener)

    def on_partitions_changed(self, listener: Callable[[], Awaitable[None]]) -> None:
        """Awaits the listener whenever MIG partitions were made or destroyed, before the kubelet is answered."""
        self._partition_listeners.append(listener)

    # ---- what is prepared ----

    @property
    def claims(self) -> Mapping[str, PreparedClaim]:
        """The claims on the node, by UID, as they are now: what is prepared, and what is under way."""
        return self._checkpoint.claims

    @property
    def broken(self) -> Mapping[str, str]:
        """Claims whose checkpoint cannot be read, and why."""
        return self._checkpoint.broken

    def processes(self, uid: str) -> int:
        """How many processes use the claim."""
        return self._sessions.processes(uid)

    # ---- prepare and unprepare ----

    async def prepare(self, reference: ClaimReference) -> PreparedResourceClaim:
        """Makes all that the claim's containers need. Asked again, it answers the same."""
        _check_uid(reference.uid)
        return await run_to_completion(self._prepare(reference))

    async def prepare_slots(self, planned: PreparedSlots) -> PreparedSlots:
        """Makes what a container with these slots needs, in place of what another container had with the same slots."""
        _check_uid(planned.uid)
        return await run_to_completion(self._prepare_slots(planned))

    async def unprepare(self, uid: str) -> None:
        """Removes all of it, also what an earlier agent left of a claim that this one never heard of."""
        _check_uid(uid)
        await run_to_completion(self._unprepare(uid))

    async def _prepare(self, reference: ClaimReference) -> PreparedResourceClaim:
        async with self._alone(reference.uid):
            known = self._checkpoint.claims.get(reference.uid)
            if isinstance(known, PreparedResourceClaim) and known.phase is Phase.PREPARED:
                return await self._make(known)
            if known is not None:
                await self._remove(known.uid)
            planned = await self._plan(await self._claims.claim(reference))
            made = await self._carry_out(self._with_known_tokens(planned))
            self._log.info("claim prepared", claim=str(reference), uid=reference.uid, pod=made.pod)
            for listener in self._prepared_listeners:
                listener(made)
            return made

    async def _prepare_slots(self, planned: PreparedSlots) -> PreparedSlots:
        async with self._alone(planned.uid):
            if planned.uid in self._checkpoint.broken:
                return await self._carry_out(self._with_known_tokens(planned))
            await self._remove(planned.uid)
            return await self._carry_out(planned)

    async def _unprepare(self, uid: str) -> None:
        async with self._alone(uid):
            known = self._checkpoint.claims.get(uid)
            await self._disk.run(self._checkpoint.begin_unpreparing, uid)
            await self._remove(uid)
            self._log.info("claim unprepared", claim="" if known is None else known.title, uid=uid)

    async def set_pod(self, uid: str, *, namespace: str, pod: str, container: str) -> None:
        """Notes whose slots they are, which the kubelet tells only later. Raises OSError if it cannot be written."""
        await run_to_completion(self._set_pod(uid, namespace, pod, container))

    async def _set_pod(self, uid: str, namespace: str, pod: str, container: str) -> None:
        async with self._alone(uid):
            known = self._checkpoint.claims.get(uid)
            if not isinstance(known, PreparedSlots):
                return
            told = msgspec.structs.replace(known, namespace=namespace, pod=pod, container=container)
            if told != known:
                await self._disk.run(self._checkpoint.put, told)
                await self._sessions.set_pod(told)

    # ---- the steps ----

    async def _plan(self, claim: Claim) -> PreparedResourceClaim:
        """What is going to be, before anything is."""
        planned = [
            _planned(allocated, await self._find(allocated, claim.reference), claim.reference)
            for allocated in claim.allocated
            if allocated.pool == self._devices.pool
        ]
        if not planned:
            raise AgentError(
                "not_ours", f"claim {claim.reference} has no device of this node", field="status.allocation.devices"
            )
        requests = dict.fromkeys(device.request for device in planned if not device.admin)
        for request in requests:
            if len({device.device for device in planned if device.request == request}) > page.MAX_GPUS:
                raise AgentError(
                    "too_many_gpus",
                    f"claim {claim.reference}, request {request}: a session has at most {page.MAX_GPUS} devices",
                    field="spec.devices.requests",
                )
        return PreparedResourceClaim(
            namespace=claim.reference.namespace,
            name=claim.reference.name,
            uid=claim.reference.uid,
            phase=Phase.PREPARING,
            created=time.time(),
            pod=claim.pod,
            pod_uid=claim.pod_uid,
            devices=planned,
            sessions=[
                PreparedSession(
                    request=request,
                    id=self._sessions.session_id(claim.reference, number),
                    token=secrets.token_urlsafe(32),
                )
                for number, request in enumerate(requests)
            ],
        )

    async def _find(self, allocated: Allocated, reference: ClaimReference) -> NodeDevice:
        found = await self._devices.find(allocated.device)
        if found is None:
            raise AgentError(
                "unknown_device",
                f"claim {reference}: this node has no device {allocated.device}",
                field="status.allocation.devices",
                remedy="see `kubectl get resourceslices`; the GPU may have been taken out since",
            )
        return found

    def _with_known_tokens(self, planned: _Kind) -> _Kind:
        """With the tokens of sessions that are there although the checkpoint lost them: containers know those."""
        if planned.uid not in self._checkpoint.broken:
            return planned
        return msgspec.structs.replace(
            planned,
            sessions=[
                msgspec.structs.replace(session, token=self._sessions.token(session.id) or session.token)
                for session in planned.sessions
            ],
        )

    async def _carry_out(self, planned: _Kind) -> _Kind:
        async with self._reserving:
            self._check_partitions(planned)
            await self._write(planned)
        try:
            return await self._make(planned)
        except BaseException:
            await self._remove_what_failed(planned.uid)
            raise

    def _check_partitions(self, planned: PreparedClaim) -> None:
        """A partition serves one claim: processes of the last may be on it though the scheduler takes it for gone."""
        for device in planned.devices:
            if device.partition is None or device.admin:
                continue
            for other in self._others_with(device.partition, planned.uid, admin=False):
                raise AgentError(
                    "partition_held",
                    f"device {device.device} still serves {other.title}: a process uses its MIG partition",
                    remedy="end that process; the kubelet then unprepares its claim",
                )

    def _others_with(self, place: PartitionPlace, uid: str, *, admin: bool = True) -> list[PreparedClaim]:
        """Other claims that have the partition; with `admin`, also those that only look after it."""
        return [
            claim
            for claim in self._checkpoint.claims.values()
            if claim.uid != uid
            and any(device.partition == place and (admin or not device.admin) for device in claim.devices)
        ]

    async def _make(self, planned: _Kind) -> _Kind:
        """Makes what is not there yet, and writes down that all of it is."""
        devices = [await self._ready(device) for device in planned.devices]
        made = msgspec.structs.replace(planned, phase=Phase.PREPARED, devices=devices)
        try:
            await self._sessions.prepare(made)
        except OSError as error:
            raise storage_error(f"{made.title} cannot be prepared", error) from None
        if made != planned:
            await self._write(made)
        return made

    async def _write(self, claim: PreparedClaim) -> None:
        try:
            await self._disk.run(self._checkpoint.put, claim)
        except OSError as error:
            raise storage_error(f"{claim.title} cannot be prepared", error) from None

    async def _ready(self, device: PreparedDevice) -> PreparedDevice:
        """The device in the mode that it was allocated in."""
        place = device.partition
        try:
            if place is not None:
                uuid = await asyncio.to_thread(self._partitions.make, place.gpu_uuid, place.profile, place.start)
                if uuid != device.uuid:
                    await self._partitions_changed()
                return msgspec.structs.replace(device, uuid=uuid)
            if not device.admin:
                await asyncio.to_thread(self._partitions.share, device.uuid)
        except NvmlUnavailableError as error:
            raise no_nvml(error) from None
        return device

    async def _remove(self, uid: str) -> None:
        """Removes what is there, in whatever state, and then the memory of it."""
        places = await self._places(uid)
        await self._sessions.unprepare(uid)
        for place in places:
            if not self._others_with(place, uid):
                await self._destroy(place)
        await self._disk.run(self._checkpoint.drop, uid)

    async def _places(self, uid: str) -> set[PartitionPlace]:
        """The claim's MIG partitions: as the checkpoint says or, where that is lost, as its sessions are on them."""
        if (known := self._checkpoint.claims.get(uid)) is not None:
            return {device.partition for device in known.devices if device.partition is not None}
        devices = self._sessions.devices(uid)
        if not devices:
            return set()
        return {
            PartitionPlace(partition.gpu_uuid, partition.profile, partition.start)
            for partition in await asyncio.to_thread(self._partitions.ours)
            if partition.mig_uuid in devices
        }

    async def _destroy(self, place: PartitionPlace) -> None:
        for partition in await asyncio.to_thread(self._partitions.ours):
            found = PartitionPlace(partition.gpu_uuid, partition.profile, partition.start)
            if found == place and partition.mig_uuid is not None:
                await asyncio.to_thread(self._partitions.destroy, partition.mig_uuid)
                await self._partitions_changed()

    async def _partitions_changed(self) -> None:
        for listener in self._partition_listeners:
            await listener()

    async def _remove_what_failed(self, uid: str) -> None:
        """The first error is the one to tell. What cannot be removed now is removed by the next call, or at a start."""
        try:
            await self._remove(uid)
        except Exception:  # noqa: BLE001 - see above
            self._log.exception("a claim could not be unprepared", uid=uid)

    # ---- at a start, and now and then ----

    async def recover(self) -> None:
        """Takes up what an earlier agent left: what it had prepared is there again, and nothing else is.

        Before anything else is asked.
        """
        await self._disk.run(self._sessions.remove_unfinished)
        await self._repair_partitions()
        for uid, claim in list(self._checkpoint.claims.items()):
            await self._take_up(uid, claim)
        await self._remove_leftovers()

    async def _repair_partitions(self) -> None:
        try:
            for gone in await asyncio.to_thread(self._partitions.repair):
                self._log.warning("a MIG partition of ours is gone", gpu=gone.gpu_uuid, profile=gone.profile)
        except NvmlUnavailableError as error:
            self._log.error("MIG partitions are not looked after", reason=str(error))

    async def _take_up(self, uid: str, claim: PreparedClaim) -> None:
        try:
            if claim.phase is not Phase.PREPARED:
                await self._remove(uid)
                self._log.info("unprepared what was begun", claim=claim.title, uid=uid)
            else:
                await self._make(claim)
        except AgentError as error:
            self._log.error("a claim could not be taken up", claim=claim.title, reason=str(error))
        except Exception:  # noqa: BLE001 - one claim does not keep the others from being served
            self._log.exception("a claim could not be taken up", claim=claim.title, uid=uid)

    async def _remove_leftovers(self) -> None:
        """Removes what no claim has. Of a claim whose file cannot be read, all is kept."""
        if self._checkpoint.lost:
            unknown = (await self._disk.run(self._sessions.uids)) - self._checkpoint.claims.keys()
            await self._disk.run(self._checkpoint.set_aside, unknown, self._checkpoint.lost)
        claims, broken = self._checkpoint.claims, self._checkpoint.broken
        for uid, reason in broken.items():
            self._sessions.tell_broken(uid, reason)
        for uid in (await self._disk.run(self._sessions.uids)) - claims.keys() - broken.keys():
            await self._sessions.unprepare(uid)
            self._log.info("removed what no claim has", uid=uid)
        places = {place for uid in (*claims, *broken) for place in await self._places(uid)}
        for partition in await asyncio.to_thread(self._partitions.ours):
            place = PartitionPlace(partition.gpu_uuid, partition.profile, partition.start)
            if place not in places:
                await self._destroy(place)
                self._log.info("removed a MIG partition that no claim has", gpu=place.gpu_uuid, profile=place.profile)

    async def unprepare_gone(self) -> None:
        """Unprepares claims that the API server no longer has, once no process is in them: the kubelet forgot them.

        Raises ClaimUnreadableError where the API server cannot be asked; then nothing is taken for gone.
        """
        references = {
            uid: claim.reference
            for uid, claim in self._checkpoint.claims.items()
            if isinstance(claim, PreparedResourceClaim)
        }
        broken = {uid: self._sessions.reference(uid) for uid in self._checkpoint.broken}
        references |= {uid: reference for uid, reference in broken.items() if reference is not None}
        for uid, reference in references.items():
            try:
                await self._claims.claim(reference)
            except ClaimGoneError as error:
                if self._sessions.processes(uid):
                    self._log.warning("processes use a claim that is gone", uid=uid, reason=error.message)
                    continue
                self._log.info("the claim is gone", claim=str(reference), uid=uid, reason=error.message)
                await self.unprepare(uid)
            else:
                if uid in self._checkpoint.broken:
                    await self._repair(reference)

    async def _repair(self, reference: ClaimReference) -> None:
        """Writes down anew what exists for a claim whose file could not be read."""
        try:
            await self.prepare(reference)
        except AgentError as error:
            self._log.error("a claim's checkpoint cannot be made anew", claim=str(reference), reason=str(error))

    @asynccontextmanager
    async def _alone(self, uid: str) -> AsyncIterator[None]:
        """One at a time for a claim; the lock goes with the last that waits for it."""
        lock, waiting = self._locks.get(uid, (asyncio.Lock(), 0))
        self._locks[uid] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[uid]
            if waiting == 1:
                del self._locks[uid]
            else:
                self._locks[uid] = lock, waiting - 1


def _planned(allocated: Allocated, found: NodeDevice, reference: ClaimReference) -> PreparedDevice:
    limit = found.memory_bytes if allocated.memory_bytes is None else allocated.memory_bytes
    if not 0 < limit <= page.BYTES_MASK or allocated.core_percent > 100:
        raise AgentError(
            "bad_share",
            f"claim {reference}, device {allocated.device}: {limit} bytes and {allocated.core_percent}% of the cores "
            "is no share of a GPU",
            field="status.allocation.devices",
        )
    return PreparedDevice(
        request=allocated.request,
        pool=allocated.pool,
        device=allocated.device,
        share_id=allocated.share_id,
        uuid="" if found.partition else found.gpu_uuid,
        model=found.model,
        limit_bytes=limit,
        core_percent=allocated.core_percent,
        partition=found.partition,
        admin=allocated.admin,
    )


def _check_uid(uid: str) -> None:
    """It becomes part of paths."""
    if _UID.fullmatch(uid) is None:
        raise AgentError("bad_uid", f"{uid!r} cannot be a claim's UID", field="uid")
