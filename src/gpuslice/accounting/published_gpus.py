"""The GPUs of the cluster and what is held of them, as ResourceSlices, claims, nodes and pods say it. Pure.

Nothing here comes from a tenant: the scheduler writes what a claim was given, and the API server lets no pod change
what it asked for once it runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from gpuslice.accounting.charges import GPU_PARTS, WHOLE_GPU, ChargeBy, Share, parts_of, weigh
from gpuslice.accounting.metering import Gpu, Holding
from gpuslice.kube.resources import Metadata  # noqa: TC001 - msgspec reads the types
from gpuslice.model import devices
from gpuslice.model.values import kubernetes_quantities

_MEMORY_SLICE: Final = "memory-slice-"
_COMPUTE: Final = re.compile(r"(\d+)g[.-]")
#: Compute slices of a GPU by whose partitions nothing else is known.
_COMPUTE_SLICES: Final = 7
_ENDED: Final = ("Succeeded", "Failed")
#: NVIDIA's own label of a node.
PRODUCT_LABEL: Final = "nvidia.com/gpu.product"


class _Value(msgspec.Struct, frozen=True, gc=False):
    value: str | int = 0


class _Attribute(msgspec.Struct, frozen=True, gc=False):
    string: str = ""


class _Taint(msgspec.Struct, frozen=True, gc=False):
    key: str = ""


class _Counters(msgspec.Struct, frozen=True, gc=False):
    counters: dict[str, _Value] | None = None


class _Device(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str
    attributes: dict[str, _Attribute] | None = None
    capacity: dict[str, _Value] | None = None
    allow_multiple_allocations: bool = False
    consumes_counters: list[_Counters] | None = None
    taints: list[_Taint] | None = None


class _Pool(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _SliceSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    pool: _Pool = _Pool()
    devices: list[_Device] | None = None


class StoredSlice(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata
    spec: _SliceSpec = _SliceSpec()


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A GPU, or a partition of one."""

    pool: str
    name: str
    #: UUID of the GPU, of a partition the GPU that it is of.
    gpu: str
    node: str
    model: str
    partition: bool
    #: Of the GPU in bytes, if shares of it are given; 0: it is given whole.
    memory: int = 0
    #: Of a partition: the memory slices by name, and how many compute slices.
    memory_slices: frozenset[str] = frozenset()
    compute_slices: int = 0
    usable: bool = True


def published(found: StoredSlice) -> tuple[PublishedDevice, ...] | None:
    """The devices of a ResourceSlice of ours."""
    spec = found.spec
    read = [_device(spec.pool.name, spec.node_name, device) for device in spec.devices or ()]
    return tuple(each for each in read if each is not None) or None


def _device(pool: str, node: str, device: _Device) -> PublishedDevice | None:
    texts = {name: each.string for name, each in (device.attributes or {}).items()}
    partition = texts.get(devices.ATTRIBUTE_TYPE) == devices.TYPE_MIG
    gpu = texts.get(devices.ATTRIBUTE_PARENT if partition else devices.ATTRIBUTE_UUID, "")
    if not gpu:
        return None
    memory = (device.capacity or {}).get(devices.CAPACITY_MEMORY, _Value()).value
    counted = [name for each in device.consumes_counters or () for name in each.counters or {}]
    compute = _COMPUTE.match(texts.get(devices.ATTRIBUTE_PROFILE, ""))
    return PublishedDevice(
        pool,
        device.name,
        gpu,
        node,
        texts.get(devices.ATTRIBUTE_MODEL, ""),
        partition,
        memory=_whole(memory) if device.allow_multiple_allocations else 0,
        memory_slices=frozenset(name for name in counted if name.startswith(_MEMORY_SLICE)),
        compute_slices=int(compute[1]) if compute else 0,
        usable=not any(taint.key == devices.TAINT_UNHEALTHY for taint in device.taints or ()),
    )


class _Result(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    consumed_capacity: dict[str, str | int] | None = None


class _Devices(msgspec.Struct, frozen=True, gc=False):
    results: list[_Result] | None = None


class _Allocation(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    devices: _Devices = _Devices()
    allocation_timestamp: str | None = None


class _Consumer(msgspec.Struct, frozen=True, gc=False):
    resource: str = ""
    name: str = ""
    uid: str = ""


class _ClaimStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class StoredClaim(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata
    status: _ClaimStatus = _ClaimStatus()


@dataclass(frozen=True, slots=True)
class Given:
    """A device that a claim was given, or a share of it. None: all of it."""

    pool: str
    device: str
    memory: int | None = None
    cores: int = 0


@dataclass(frozen=True, slots=True)
class AllocatedClaim:
    uid: str
    namespace: str
    given: tuple[Given, ...]
    pods: tuple[tuple[str, str], ...]
    since: int | None = field(compare=False, default=None)


def allocated(found: StoredClaim) -> AllocatedClaim | None:
    """A claim that has devices of ours. Who may only look at them (admin access) holds nothing."""
    allocation = found.status.allocation
    if allocation is None:
        return None
    given = tuple(
        Given(each.pool, each.device, *_amounts(each.consumed_capacity))
        for each in allocation.devices.results or ()
        if each.driver == devices.DRIVER and not each.admin_access
    )
    if not given:
        return None
    pods = ((each.uid, each.name) for each in found.status.reserved_for or () if each.resource == "pods")
    metadata = found.metadata
    since = _moment(allocation.allocation_timestamp)
    return AllocatedClaim(metadata.uid, metadata.namespace, given, tuple(sorted(pods)), since)


def _amounts(consumed: dict[str, str | int] | None) -> tuple[int | None, int]:
    if not consumed or devices.CAPACITY_MEMORY not in consumed:
        return None, 0
    return _whole(consumed[devices.CAPACITY_MEMORY]), _whole(consumed.get(devices.CAPACITY_CORES, 0))


def gpu_of(published_devices: list[PublishedDevice], price: int, *, node_ready: bool) -> Gpu:
    """The GPU that all these devices are of."""
    first = min(published_devices, key=lambda each: (each.partition, each.name))
    usable = node_ready and all(each.usable for each in published_devices)
    return Gpu(first.gpu, first.node, first.model, price=price, usable=usable)


def share(given: Given, device: PublishedDevice, of_gpu: list[PublishedDevice]) -> Share:
    """What a claim has of the GPU."""
    if device.partition:
        slices = frozenset().union(*(each.memory_slices for each in of_gpu))
        compute = max((each.compute_slices for each in of_gpu), default=0) or _COMPUTE_SLICES
        return Share(parts_of(len(device.memory_slices), len(slices)), parts_of(max(device.compute_slices, 1), compute))
    if given.memory is None or not device.memory:
        return WHOLE_GPU
    return Share(parts_of(given.memory, device.memory), parts_of(given.cores, 100) if given.cores else None)


def holding(claim: AllocatedClaim, of_gpu: list[PublishedDevice], by: ChargeBy) -> Holding:
    """What the claim holds of this GPU: of several shares the sum, and never more than the GPU."""
    named = {(each.pool, each.name): each for each in of_gpu}
    weights = [
        weigh(share(given, named[given.pool, given.device], of_gpu), by)
        for given in claim.given
        if (given.pool, given.device) in named
    ]
    return Holding(claim.uid, claim.namespace, min(GPU_PARTS, sum(weights)), claim.pods, claim.since)


class _NodeCondition(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""


class _NodeStatus(msgspec.Struct, frozen=True, gc=False):
    capacity: dict[str, str | int] | None = None
    conditions: list[_NodeCondition] | None = None


class StoredNode(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata
    status: _NodeStatus = _NodeStatus()


@dataclass(frozen=True, slots=True)
class SlotParts:
    """How much of a GPU one of each extended resource is, in parts."""

    shared_resource: str = devices.SHARED_RESOURCE
    whole_resource: str = devices.WHOLE_RESOURCE
    slots_per_gpu: int = devices.SLOTS_PER_GPU

    def of(self, resource: str) -> int:
        """0: it is no GPU."""
        if resource == self.whole_resource:
            return GPU_PARTS
        if resource == self.shared_resource:
            return GPU_PARTS // self.slots_per_gpu
        if resource.startswith(devices.MIG_RESOURCE_PREFIX):
            found = _COMPUTE.match(resource.removeprefix(devices.MIG_RESOURCE_PREFIX))
            return parts_of(int(found[1]), _COMPUTE_SLICES) if found else 0
        return 0

    def sum(self, amounts: dict[str, str | int] | None) -> int:
        return sum(self.of(name) * _whole(count) for name, count in (amounts or {}).items() if self.of(name))


@dataclass(frozen=True, slots=True)
class Node:
    """A node, and its GPUs that device plugins count. The kubelet tells nobody which slot is of which GPU, so that
    these are one account.
    """

    name: str
    ready: bool
    parts: int = 0
    model: str = ""


def node(found: StoredNode, slots: SlotParts) -> Node:
    ready = any(each.type == "Ready" and each.status == "True" for each in found.status.conditions or ())
    model = (found.metadata.labels or {}).get(PRODUCT_LABEL, "")
    return Node(found.metadata.name, ready, slots.sum(found.status.capacity), model)


def slots_account(name: str) -> str:
    """What the account of a node's slots is called. No GPU's UUID has a slash."""
    return f"{name}/slots"


class _Resources(msgspec.Struct, frozen=True, gc=False):
    limits: dict[str, str | int] | None = None


class _Container(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resources: _Resources = _Resources()
    restart_policy: str | None = None


class _PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _PodCondition(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class _PodStatus(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""
    conditions: list[_PodCondition] | None = None


class StoredPod(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


@dataclass(frozen=True, slots=True)
class SlotPod:
    """A pod that was given slots of its node."""

    uid: str
    namespace: str
    name: str
    node: str
    parts: int
    since: int | None = field(compare=False, default=None)

    def holding(self) -> Holding:
        """The pod is the claim."""
        return Holding(self.uid, self.namespace, self.parts, ((self.uid, self.name),), self.since)


def slot_pod(found: StoredPod, slots: SlotParts) -> SlotPod | None:
    """From when it is bound to a node until it has ended."""
    if not found.spec.node_name or found.status.phase in _ENDED:
        return None
    init = found.spec.init_containers or []
    sidecars = [each for each in init if each.restart_policy == "Always"]
    together = sum(slots.sum(each.resources.limits) for each in [*(found.spec.containers or ()), *sidecars])
    parts = max([together, *(slots.sum(each.resources.limits) for each in init)])
    if not parts:
        return None
    scheduled = next((each for each in found.status.conditions or () if each.type == "PodScheduled"), None)
    since = _moment(scheduled.last_transition_time) if scheduled is not None else None
    metadata = found.metadata
    return SlotPod(metadata.uid, metadata.namespace, metadata.name, found.spec.node_name, parts, since)


def _whole(quantity: str | int) -> int:
    try:
        return kubernetes_quantities.parse_whole(quantity)
    except ValueError:
        return 0


def _moment(text: str | None) -> int | None:
    try:
        return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None
