"""What was prepared for which claim, on disk: the agent's memory of it over a restart.

A prepared claim is one of two kinds: a ResourceClaim (backend `dra`), or the slots of a container (backend `extended`).

Each claim has a file, which is written whole or not at all and says of which version it is. An older one is brought up
to date step by step; a newer one is refused, because what it says and this agent does not know would be lost. One that
cannot be read is set aside, and what exists for its claim stays until the claim is prepared again or known to be gone.

Unpreparing needs no space on the disk: the claim's file is renamed, and then unlinked.

`ClaimPreparer` owns the checkpoint, and calls it in the disk thread. What others read of it on the event loop
meanwhile does not change under them: each change makes new dictionaries.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from gpuslice.node.claims.resource_claims import ClaimReference
from gpuslice.node.errors import AgentError
from gpuslice.system.files import synchronize, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    #: From a version to what its successor would have written.
    Upgrades = Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]

VERSION: Final = 3
_FILE: Final = ".json"
_UNPREPARING: Final = ".unpreparing.json"
_BROKEN: Final = ".json.broken"


def _from_first(old: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had all claims in one file; `_read_single_file` takes it apart. A claim's own content is the same."""
    return old


def _from_second(old: dict[str, Any]) -> dict[str, Any]:
    """Version 2 had one kind of claim, in which slots were an empty list if it was a ResourceClaim."""
    claim = dict(old["claim"])
    slots = bool(claim.get("slots"))
    for field in ("name", "pod_uid") if slots else ("slots", "resource", "slots_per_gpu", "container"):
        claim.pop(field, None)
    return old | {"claim": claim | {"kind": "slots" if slots else "claim"}}


UPGRADES: Final[Upgrades] = {1: _from_first, 2: _from_second}


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


class _Prepared(msgspec.Struct, kw_only=True, tag_field="kind"):
    """What both kinds have."""

    uid: str
    phase: Phase
    created: float
    devices: list[PreparedDevice]
    sessions: list[PreparedSession]
    #: Of the pod. A container's slots have none until the kubelet lists its pod.
    namespace: str = ""
    pod: str = ""


class PreparedResourceClaim(_Prepared, tag="claim"):
    """All that exists on the node for a ResourceClaim."""

    name: str
    pod_uid: str = ""

    @property
    def reference(self) -> ClaimReference:
        return ClaimReference(self.namespace, self.name, self.uid)

    @property
    def title(self) -> str:
        """For people: what it is."""
        return f"claim {self.reference}"

    @property
    def pod_title(self) -> str:
        """For people: the pod that has it, as far as that is known."""
        return f"{self.namespace}/{self.pod or self.name}"


class PreparedSlots(_Prepared, tag="slots"):
    """All that exists on the node for a container with slots of an extended resource."""

    resource: str
    slots: list[str]
    #: 0 if an agent before version 2 did not write it down.
    slots_per_gpu: int = 0
    container: str = ""

    @property
    def title(self) -> str:
        """For people: what it is."""
        return f"slots of {self.resource}"

    @property
    def pod_title(self) -> str:
        """For people: the pod that has them, as far as that is known."""
        return f"{self.namespace}/{self.pod or self.uid}"


PreparedClaim: TypeAlias = PreparedResourceClaim | PreparedSlots


class _Content(msgspec.Struct, kw_only=True):
    version: int = VERSION
    claim: PreparedClaim


class Checkpoint:
    """The claims in the folder, by UID."""

    def __init__(self, folder: Path, single_file: Path) -> None:
        """`single_file` is where version 1 kept all claims; they get files of their own, and it is removed."""
        self._folder = folder
        self.claims: dict[str, PreparedClaim] = {}
        #: Claims whose files cannot be read, and why.
        self.broken: dict[str, str] = {}
        #: Why the single file of version 1 could not be read: then it is not known which claims there were.
        self.lost = ""
        folder.mkdir(mode=0o700, exist_ok=True)
        if single_file.exists():
            self._take_apart(single_file)
        for path in sorted(folder.iterdir()):
            self._load(path)

    def put(self, claim: PreparedClaim) -> None:
        """Remembers the claim as it is now. The file first: what is in memory is never ahead of it."""
        write_durably(self._path(claim.uid), encode(claim))
        self.claims = self.claims | {claim.uid: claim}
        self.broken = _without(self.broken, claim.uid)
        for suffix in (_UNPREPARING, _BROKEN):
            self._path(claim.uid, suffix).unlink(missing_ok=True)

    def begin_unpreparing(self, uid: str) -> None:
        """Notes that unpreparing began. Where even a name finds no room, the next agent begins it again instead."""
        claim = self.claims.get(uid)
        if claim is None or claim.phase is Phase.UNPREPARING:
            return
        self.claims = self.claims | {uid: msgspec.structs.replace(claim, phase=Phase.UNPREPARING)}
        with suppress(OSError):
            self._path(uid).rename(self._path(uid, _UNPREPARING))
            synchronize(self._folder)

    def drop(self, uid: str) -> None:
        """Forgets the claim."""
        for suffix in (_FILE, _UNPREPARING, _BROKEN):
            self._path(uid, suffix).unlink(missing_ok=True)
        self.claims = _without(self.claims, uid)
        self.broken = _without(self.broken, uid)
        with suppress(OSError):
            synchronize(self._folder)

    def set_aside(self, uids: Iterable[str], reason: str) -> None:
        """Notes that there are claims of which nothing is known."""
        for uid in uids:
            self.broken = self.broken | {uid: reason}
            self._path(uid, _BROKEN).touch(mode=0o600)

    def _path(self, uid: str, suffix: str = _FILE) -> Path:
        return self._folder / f"{uid}{suffix}"

    def _load(self, path: Path) -> None:
        if path.name.startswith("."):
            return  # half written, and removed later
        uid, _, suffix = path.name.partition(".")
        if f".{suffix}" == _BROKEN:
            self.broken.setdefault(uid, "its file could not be read by an earlier agent")
            return
        try:
            claim = decode(path.read_bytes(), str(path))
            if claim.uid != uid:
                raise _not_a_claim(str(path), f"it is of claim {claim.uid!r}")
        except (OSError, UnreadableError) as error:
            self.broken[uid] = str(error)
            path.rename(self._path(uid, _BROKEN))
            return
        if f".{suffix}" == _UNPREPARING:
            claim = msgspec.structs.replace(claim, phase=Phase.UNPREPARING)
        self.claims[uid] = claim

    def _take_apart(self, single_file: Path) -> None:
        """Nothing is lost if this is interrupted: the single file is removed last, and taken apart again until then."""
        try:
            claims = _read_single_file(single_file.read_bytes(), str(single_file))
        except UnreadableError as error:
            self.lost = str(error)
            single_file.rename(single_file.with_name(f"{single_file.name}.broken"))
            return
        for claim in claims.values():
            write_durably(self._path(claim.uid), encode(claim))
        single_file.unlink()
        synchronize(single_file.parent)


class UnreadableError(AgentError):
    """Raised for content that is torn, or no claim's at all."""


def encode(claim: PreparedClaim) -> bytes:
    return msgspec.json.encode(_Content(claim=claim)) + b"\n"


def decode(
    content: bytes, where: str = "the checkpoint", *, version: int = VERSION, upgrades: Upgrades = UPGRADES
) -> PreparedClaim:
    """The claim in a file of this version or of an older one."""
    try:
        return msgspec.convert(_upgraded(content, where, version, upgrades), _Content).claim
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise _not_a_claim(where, str(error)) from None


def _upgraded(content: bytes, where: str, version: int, upgrades: Upgrades) -> dict[str, Any]:
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
    return found


def _read_single_file(content: bytes, where: str) -> dict[str, PreparedClaim]:
    """The claims in the one file that version 1 had."""
    try:
        claims: dict[str, Any] = _upgraded(content, where, 1, {})["claims"]
        return {uid: decode(msgspec.json.encode({"version": 1, "claim": claim})) for uid, claim in claims.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, AttributeError) as error:
        raise _not_a_claim(where, str(error)) from None


def _not_a_claim(where: str, reason: str) -> UnreadableError:
    return UnreadableError("checkpoint", f"{where} is not a checkpoint: {reason}")


_V = TypeVar("_V")


def _without(known: dict[str, _V], uid: str) -> dict[str, _V]:
    return {key: value for key, value in known.items() if key != uid}
