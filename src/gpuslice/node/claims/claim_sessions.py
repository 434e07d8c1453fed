"""What a prepared claim has on the node: a session per request, the files that say so to containers, and the CDI spec.

All of it can be made again and removed again at any time; what is there already is left as it is.
"""

from __future__ import annotations

import re
import shutil
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.model.sessions import MAX_NAME
from gpuslice.node.claims import cdi
from gpuslice.node.claims.checkpoint import PreparedResourceClaim
from gpuslice.node.claims.resource_claims import ClaimReference
from gpuslice.node.sessions.record import GpuRecord, SessionRecord, WorkloadRecord
from gpuslice.system.files import remove_unfinished, write_durably

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice.node.audit import Audit
    from gpuslice.node.claims.checkpoint import PreparedClaim, PreparedSession, PreparedSlots
    from gpuslice.node.disk import DiskThread
    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.session import Session
    from gpuslice.node.sessions.state_folder import StateFolder

#: An agent that is being replaced is away for longer than one that crashed.
GRACE_SECONDS: Final = 60.0
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")


class ClaimSessions:
    """The sessions of claims in the registry, and what belongs to them."""

    def __init__(
        self,
        registry: Registry,
        state: StateFolder,
        folder: cdi.CdiFolder,
        libraries: Path,
        audit: Audit,
        disk: DiskThread,
    ) -> None:
        self._registry = registry
        self._state = state
        self._cdi = folder
        self._libraries = libraries
        self._audit = audit
        self._disk = disk
        state.claims.mkdir(mode=0o700, exist_ok=True)

    @staticmethod
    def session_id(reference: ClaimReference, number: int) -> str:
        """For people, and unlike any other: claims may have the same name one after the other."""
        first = f"{session_name(reference.name)}-{_NOT_IN_NAMES.sub('', reference.uid.lower())[:8]}"
        return first if number == 0 else f"{first}-{number + 1}"

    async def prepare(self, claim: PreparedClaim) -> None:
        """Makes what the claim does not have yet: first the sessions, then what tells containers of them."""
        for prepared in claim.sessions:
            if prepared.id not in self._registry.sessions:
                await self._create(claim, prepared)
        await self._disk.run(self._write_files, claim)

    def _write_files(self, claim: PreparedClaim) -> None:
        files = {prepared.request: self._write_file(claim.uid, prepared) for prepared in claim.sessions}
        if files:
            self._cdi.write(claim.uid, cdi.spec(claim.uid, files, libraries=self._libraries, agent=self._state.tenants))

    async def _create(self, claim: PreparedClaim, prepared: PreparedSession) -> None:
        record = SessionRecord(
            id=prepared.id,
            name=_session_name(claim),
            token=prepared.token,
            owner_uid=0,
            owner_gid=0,
            gpus=_shares(claim, prepared.request),
            created=time.time(),
            boot_id="",
            grace_seconds=GRACE_SECONDS,
            workload=_workload(claim, prepared.request),
        )
        session = await self._registry.create(record, None)
        self._audit.write(
            "create", session_id=session.id, uid=0, size=sum(gpu.limit_bytes for gpu in record.gpus), claim=claim.uid
        )

    def _write_file(self, uid: str, prepared: PreparedSession) -> Path:
        folder = self._state.claims / uid
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / prepared.request
        content = cdi.session_text(prepared.id, prepared.token, self._state.attach_socket.name)
        with suppress(FileNotFoundError):
            if path.read_bytes() == content and path.stat().st_mode & 0o777 == 0o444:
                return path
        write_durably(path, content, mode=0o444)  # any user of the container; on the node the folder is closed
        return path

    async def set_pod(self, claim: PreparedSlots) -> None:
        """Notes whose the sessions are, where that is learnt later."""
        for session in self._of(claim.uid):
            workload = session.record.workload
            assert workload is not None
            known = msgspec.structs.replace(
                workload, namespace=claim.namespace, pod=claim.pod, container=claim.container
            )
            if known != workload:
                await self._registry.update(session, partial(_with_workload, workload=known))

    def token(self, session_id: str) -> str:
        """The token of a session that is there; empty if there is none."""
        session = self._registry.sessions.get(session_id)
        return "" if session is None else session.record.token

    def devices(self, uid: str) -> set[str]:
        """The GPUs and partitions that the claim's sessions are on."""
        return {gpu.uuid for session in self._of(uid) for gpu in session.record.gpus}

    def reference(self, uid: str) -> ClaimReference | None:
        """The claim's name, as its sessions know it. None if it has none, or is a container's with slots."""
        for session in self._of(uid):
            workload = session.record.workload
            if workload is not None and workload.claim:
                return ClaimReference(workload.namespace, workload.claim, uid)
        return None

    def tell_broken(self, uid: str, reason: str) -> None:
        """A claim whose checkpoint cannot be read: for people, in the audit log and the metric of what is set aside."""
        self._registry.quarantined += 1
        self._audit.write("quarantine", result="error", claim=uid, error_code="broken_checkpoint", reason=reason)

    async def unprepare(self, uid: str) -> None:
        """Removes all that there is of the claim, known or not: first what new containers would find."""
        await self._disk.run(self._cdi.remove, uid)
        for session in self._of(uid):
            await self._registry.release(session, "claim unprepared")
        await self._disk.run(shutil.rmtree, self._state.claims / uid, ignore_errors=True)

    def remove_unfinished(self) -> None:
        """Before anything else: what a killed agent was writing."""
        self._cdi.remove_unfinished()
        for folder in (self._state.folder, self._state.prepared, self._state.partitions, *self._state.claims.iterdir()):
            remove_unfinished(folder)

    def processes(self, uid: str) -> int:
        """How many processes are in the claim's sessions."""
        return sum(len(session.processes) for session in self._of(uid))

    def uids(self) -> set[str]:
        """Every claim of which there is anything."""
        in_sessions = {workload.claim_uid for workload in self._workloads() if workload.claim_uid}
        return in_sessions | self._cdi.uids() | {folder.name for folder in self._state.claims.iterdir()}

    def _workloads(self) -> list[WorkloadRecord]:
        records = [session.record.workload for session in list(self._registry.sessions.values())]
        return [workload for workload in records if workload is not None]

    def _of(self, uid: str) -> list[Session]:
        return [
            session
            for session in self._registry.sessions.values()
            if session.record.workload is not None and session.record.workload.claim_uid == uid
        ]


def session_name(name: str) -> str:
    """A Kubernetes name as a session can have it."""
    return _NOT_IN_NAMES.sub("-", name.lower())[:MAX_NAME].strip("-") or "claim"


def _session_name(claim: PreparedClaim) -> str:
    if isinstance(claim, PreparedResourceClaim):
        return session_name(claim.name)
    return session_name(claim.resource.rpartition("/")[2])


def _workload(claim: PreparedClaim, request: str) -> WorkloadRecord:
    workload = WorkloadRecord(namespace=claim.namespace, pod=claim.pod, claim_uid=claim.uid, request=request)
    if isinstance(claim, PreparedResourceClaim):
        return msgspec.structs.replace(workload, pod_uid=claim.pod_uid, claim=claim.name)
    return msgspec.structs.replace(workload, container=claim.container)


def _with_workload(record: SessionRecord, *, workload: WorkloadRecord) -> SessionRecord:
    return msgspec.structs.replace(record, workload=workload)


def _shares(claim: PreparedClaim, request: str) -> list[GpuRecord]:
    """The limit on each device of the request; two shares of the same device are one."""
    found: dict[str, GpuRecord] = {}
    for device in claim.devices:
        if device.request != request or device.admin:
            continue
        share = found.setdefault(device.uuid, GpuRecord(device.uuid, 0, 0, device.model))
        share.limit_bytes += device.limit_bytes
        share.core_percent = min(100, share.core_percent + device.core_percent)
    return list(found.values())
