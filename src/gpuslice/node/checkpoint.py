"""What was prepared for which claim, on disk: the agent's memory of it over a restart.

The file is written whole or not at all, and says of which version it is. An older one is brought up to date step by
step; a newer one is refused, because what it says and this agent does not know would be lost.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.node.claims import ClaimReference
from gpuslice.node.errors import AgentError
from gpuslice.node.records import write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    #: From a version to what its successor would have written.
    Upgrades = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]

VERSION: Final = 1
UPGRADES: Final[Upgrades] = {}


class Phase(StrEnum):
    """How far a claim has come. Only what is PREPARED was answered to the kubelet."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"


class PartitionPlace(msgspec.Struct, frozen=True):
    """A MIG partition that a claim has, by its place: it is there or can be made anew."""

    gpu_uuid: str
    profile: str
    start: int


class PreparedDevice(msgspec.Struct, kw_only=True):
    """A device of a claim."""

    request: str
    pool: str
    device: str
    share_id: str | None = None
    #: Of the GPU, or of the partition once it is made.
    uuid: str = ""
    model: str = ""
    limit_bytes: int
    core_percent: int = 0
    partition: PartitionPlace | None = None
    admin: bool = False


class PreparedSession(msgspec.Struct, kw_only=True):
    """The session behind one request of a claim. With the token it can be made again as containers know it."""

    request: str
    id: str
    token: str


class PreparedClaim(msgspec.Struct, kw_only=True):
    """All that exists on the node for a claim."""

    namespace: str
    name: str
    uid: str
    phase: Phase
    created: float
    pod: str = ""
    pod_uid: str = ""
    devices: list[PreparedDevice]
    sessions: list[PreparedSession]
    #: Of a device plugin's resource: the devices that a container has. Then there is no claim in the API server.
    slots: list[str] = []
    resource: str = ""
    #: 0 if it was not written down.
    slots_per_gpu: int = 0
    container: str = ""

    @property
    def reference(self) -> ClaimReference:
        return ClaimReference(self.namespace, self.name, self.uid)


class _Content(msgspec.Struct, kw_only=True):
    version: int = VERSION
    claims: dict[str, PreparedClaim] = {}


class Checkpoint:
    """The claims in the file, by UID."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            self.claims: dict[str, PreparedClaim] = {}
        else:
            self.claims = decode(content, str(path))

    def put(self, claim: PreparedClaim) -> None:
        """Remembers the claim as it is now."""
        self._write(self.claims | {claim.uid: claim})

    def drop(self, uid: str) -> None:
        """Forgets the claim."""
        if uid in self.claims:
            self._write({known: claim for known, claim in self.claims.items() if known != uid})

    def _write(self, claims: dict[str, PreparedClaim]) -> None:
        """The file first: what is in memory is never ahead of it."""
        write_durably(self._path, encode(claims))
        self.claims = claims


def encode(claims: dict[str, PreparedClaim]) -> bytes:
    return msgspec.json.encode(_Content(claims=claims)) + b"\n"


def decode(
    content: bytes, where: str = "the checkpoint", *, version: int = VERSION, upgrades: Upgrades = UPGRADES
) -> dict[str, PreparedClaim]:
    """The claims in a file of this version or of an older one."""
    try:
        found = msgspec.json.decode(content, type=dict[str, Any])
        written = found.get("version")
        if not isinstance(written, int) or written < 1:
            raise msgspec.ValidationError(f"its version is {written!r}")
        if written > version:
            raise AgentError(
                "checkpoint",
                f"{where} was written by a newer agent: it is of version {written}, this agent reads up to {version}",
                remedy="run the newer agent, or drain the node and remove the file",
            )
        for number in range(written, version):
            found = upgrades[number](found) | {"version": number + 1}
        return msgspec.convert(found, _Content).claims
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        raise AgentError(
            "checkpoint", f"{where} is not a checkpoint: {error}", remedy="drain the node and remove the file"
        ) from None
