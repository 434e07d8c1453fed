"""What the agent's admin socket is asked and answers: one JSON object per line, each way."""

from __future__ import annotations

from typing import Final

import msgspec

VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024


class _Request(msgspec.Struct, tag_field="operation", kw_only=True, forbid_unknown_fields=True):
    version: int = VERSION
    token: str = ""


class GpuShare(msgspec.Struct, forbid_unknown_fields=True):
    """A share of one GPU: by index, UUID or the beginning of one. The limit is bytes ("256MB") or a part ("25%")."""

    gpu: str
    limit: str | int | None = None
    core_percent: int = 0


class Create(_Request, tag="create"):
    """Make a session. Without `gpus`, it has the same limit on every GPU of the machine."""

    name: str = ""
    limit: str | int | None = None
    gpus: list[GpuShare] = []
    ttl_seconds: float | None = None
    grace_seconds: float = 10.0
    on_breach: str = "report"
    ttl_kill: bool = False
    #: The session is released when this process is gone and none is attached.
    owner_pid: int | None = None
    #: Also if more of a GPU is promised then than it has.
    overcommit: bool = False


class List(_Request, tag="list"):
    """Every session."""


class Show(_Request, tag="show"):
    """One session; to its owner with its token."""

    id: str


class Limit(_Request, tag="limit"):
    """Change the limit, on one GPU of the session or on all."""

    id: str
    limit: str | int
    gpu: str | None = None
    #: Also if more of a GPU is promised then than it has.
    overcommit: bool = False


class Release(_Request, tag="release"):
    """Forget a session."""

    id: str
    force: bool = False


class Status(_Request, tag="status"):
    """The agent itself."""


Request = Create | List | Show | Limit | Release | Status


class GpuView(msgspec.Struct, kw_only=True):
    """A session on one GPU."""

    uuid: str
    model: str
    limit_bytes: int
    core_percent: int
    held_bytes: int
    overhead_bytes: int
    peak_bytes: int
    allocations: int
    denials: int
    recovered_bytes: int
    breaches: int


class ProcessView(msgspec.Struct, kw_only=True):
    """A process in a session; the bytes are per GPU, in the order of the session's GPUs."""

    pid: int
    slot: int
    command: str
    held_bytes: list[int]
    overhead_bytes: list[int]


class OwnerView(msgspec.Struct, kw_only=True):
    """Who made a session."""

    uid: int
    gid: int
    pid: int | None


class WorkloadView(msgspec.Struct, kw_only=True):
    """Whose session it is, where Kubernetes asked for it."""

    namespace: str
    pod: str
    container: str
    claim: str
    claim_uid: str
    request: str


class SessionView(msgspec.Struct, kw_only=True):
    """A session as it is now. `token` is empty for users who may not know it."""

    id: str
    name: str
    state: str
    created: float
    expires_in: float | None
    grace_seconds: float
    on_breach: str
    ttl_kill: bool
    owner: OwnerView
    gpus: list[GpuView]
    processes: list[ProcessView]
    allocations: int
    denials: int
    breaches: int
    socket: str
    token: str = ""
    workload: WorkloadView | None = None


class InventoryGpu(msgspec.Struct, kw_only=True):
    """A GPU, or a MIG device, of the machine."""

    index: str
    uuid: str
    model: str
    memory_bytes: int
    mig: bool = False
    #: It fell off the bus. What is said of it is what was known before; of one never seen, the index alone.
    lost: bool = False


class AgentView(msgspec.Struct, kw_only=True):
    """The agent."""

    version: str
    pid: int
    uid: int
    state_folder: str
    uptime_seconds: float
    sessions: int
    processes: int
    nvml: bool
    nvml_error: str
    gpus: list[InventoryGpu]
    #: Whether tenants cannot write their limit even as root of a container; if not, why.
    sealed: bool
    weakness: str


class Problem(msgspec.Struct, kw_only=True):
    """Why a request was refused."""

    code: str
    message: str
    field: str = ""
    remedy: str = ""


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer to any request."""

    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Problem | None = None


def encode(message: object) -> bytes:
    return msgspec.json.encode(message) + b"\n"
