"""ResourceClaims as the node needs them: which devices of this node were allocated, and how much of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from gpuslice.model import devices
from gpuslice.model.values import kubernetes_quantities
from gpuslice.node.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Sequence

_POD: Final = "pods"


class ClaimGoneError(AgentError):
    """Raised when the API server has no such claim: it was deleted, or another has its name now."""


class ClaimUnreadableError(AgentError):
    """Raised when the API server cannot be asked. It may answer later."""


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """One device that a claim was given, or a share of one."""

    #: Of the claim; alternatives of a request all count as that request.
    request: str
    pool: str
    device: str
    share_id: str | None = None
    #: None: the claim has all of the device.
    memory_bytes: int | None = None
    core_percent: int = 0
    #: To look at, not to compute on: without a limit, and without a share.
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """An allocated claim."""

    reference: ClaimReference
    allocated: tuple[Allocated, ...]
    #: The pod that uses it; of several, the first. Both are empty if no pod uses it.
    pod: str = ""
    pod_uid: str = ""


class Claims(Protocol):
    """Where claims are read from."""

    async def claim(self, reference: ClaimReference) -> Claim:
        """The claim as it is now, or ClaimGoneError or ClaimUnreadableError."""

    async def report(self, reference: ClaimReference, status: Sequence[dict[str, Any]]) -> None:
        """Writes the state of its devices into the claim's status."""


class _Result(msgspec.Struct, rename="camel"):
    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int] | None = None


class _Devices(msgspec.Struct):
    results: list[_Result] | None = None


class _Allocation(msgspec.Struct):
    devices: _Devices = msgspec.field(default_factory=_Devices)


class _Consumer(msgspec.Struct):
    resource: str
    name: str
    uid: str


class _Status(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class _Metadata(msgspec.Struct):
    namespace: str
    name: str
    uid: str


class _Document(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


def read(document: object, reference: ClaimReference) -> Claim:
    """What a ResourceClaim gives of our driver's devices. `document` is the object as the API server has it."""
    try:
        found = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise AgentError("bad_claim", f"claim {reference} cannot be read: {error}") from None
    if found.metadata.uid != reference.uid:
        raise ClaimGoneError(
            "claim_gone",
            f"claim {reference} is another by now: it has UID {found.metadata.uid}, not {reference.uid}",
        )
    if found.status.allocation is None:
        raise ClaimGoneError("not_allocated", f"claim {reference} is not allocated", remedy="wait for the scheduler")
    results = found.status.allocation.devices.results or ()
    pods = [consumer for consumer in found.status.reserved_for or () if consumer.resource == _POD]
    return Claim(
        reference,
        tuple(_allocated(result, reference) for result in results if result.driver == devices.DRIVER),
        pod=pods[0].name if pods else "",
        pod_uid=pods[0].uid if pods else "",
    )


def _allocated(result: _Result, reference: ClaimReference) -> Allocated:
    consumed = result.consumed_capacity or {}
    try:
        memory = consumed.get(devices.CAPACITY_MEMORY)
        return Allocated(
            request=result.request.partition("/")[0],
            pool=result.pool,
            device=result.device,
            share_id=result.share_id,
            memory_bytes=None if memory is None else kubernetes_quantities.parse_whole(memory),
            core_percent=kubernetes_quantities.parse_whole(consumed.get(devices.CAPACITY_CORES, 0)),
            admin=bool(result.admin_access),
        )
    except ValueError as error:
        raise AgentError(
            "bad_claim", f"claim {reference}, device {result.device}: {error}", field="status.allocation"
        ) from None
