"""What session.json holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.model.sessions import OnBreach, SessionState, is_id
from gpuslice.node.errors import BrokenSessionError
from gpuslice.node.sessions import page
from gpuslice.system.files import write_durably
from gpuslice.system.processes import ProcessIdentity  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from pathlib import Path

VERSION: Final = 1


class GpuRecord(msgspec.Struct):
    """A session's share of one GPU."""

    uuid: str
    limit_bytes: int
    core_percent: int = 0
    model: str = ""
    #: Use above the limit for which no process is to blame: the limit was lowered under it. It only ever shrinks.
    tolerated_bytes: int = 0


class WorkloadRecord(msgspec.Struct, kw_only=True):
    """Whose session it is, where Kubernetes asked for it: a request of a claim, or a container with slots."""

    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    container: str = ""
    claim: str = ""
    claim_uid: str = ""
    request: str = ""


class SessionRecord(msgspec.Struct, kw_only=True):
    """A session as it is kept over a restart of the agent."""

    version: int = VERSION
    id: str
    name: str
    token: str
    owner_uid: int
    owner_gid: int
    owner: ProcessIdentity | None = None
    gpus: list[GpuRecord]
    state: SessionState = SessionState.ACTIVE
    created: float
    ttl_seconds: float | None = None
    #: By the clock that cannot be set (CLOCK_BOOTTIME); it means something only in the boot named here.
    expires: float | None = None
    boot_id: str
    #: No process gets a slot before that (CLOCK_MONOTONIC, of that boot): processes with an earlier page may allocate.
    closed_until: float = 0.0
    grace_seconds: float
    on_breach: OnBreach = OnBreach.REPORT
    ttl_kill: bool = False
    workload: WorkloadRecord | None = None


def read_record(path: Path, session_id: str) -> SessionRecord:
    """The record of that session, or BrokenSessionError."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=SessionRecord)
    except OSError as error:
        raise BrokenSessionError(f"session.json cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BrokenSessionError(f"session.json is not a session: {error}") from None
    if record.version != VERSION:
        raise BrokenSessionError(f"session.json is of version {record.version}, this agent reads version {VERSION}")
    if record.id != session_id or not is_id(record.id):
        raise BrokenSessionError(f"session.json is of session {record.id!r}")
    if not 1 <= len(record.gpus) <= page.MAX_GPUS:
        raise BrokenSessionError(f"session.json names {len(record.gpus)} GPUs")
    try:
        for gpu in record.gpus:
            page.uuid_bytes(gpu.uuid)
    except (ValueError, IndexError):
        raise BrokenSessionError("session.json names a GPU without a UUID") from None
    return record


def encode_record(record: SessionRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record)) + b"\n"


def write_record(folder: Path, content: bytes) -> None:
    """Writes what `encode_record` made. They are apart because the record may change while the disk is waited for."""
    write_durably(folder / "session.json", content)
