"""A node's GPUs as ResourceSlices (resource.k8s.io/v1). Pure.

The scheduler takes the first device that fits: slices in the order of their names, devices in the order they stand
there. So the GPUs to be shared come first, in the order that shares shall fill them, and then their partitions, those
of the last GPU first: pods that share and pods that want MIG meet as late as possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpuslice.model import devices
from gpuslice.model.gpus import short_name
from gpuslice.model.values.kubernetes_quantities import format_bytes
from gpuslice.node.gpus import counters, published_devices
from gpuslice.node.gpus.policies import GpuPolicies, MigMode, Mode, Placement

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpuslice.node.gpus.gpu_state import GpuState
    from gpuslice.node.gpus.published_devices import PartitionDevice

#: Kubernetes' own limits for a slice of devices that have counters or taints, and for one of counters.
MAX_DEVICES: Final = 64
MAX_COUNTER_SETS: Final = 8
#: A string attribute must not be longer.
MAX_ATTRIBUTE: Final = 64

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SliceContent:
    """A ResourceSlice without what changes with every publication: its name's end, and the spec's content."""

    suffix: str
    content: Mapping[str, Any]


def slice_name(node: str, suffix: str) -> str:
    return f"{node}-{devices.DRIVER}-{suffix}"


def build(states: Iterable[GpuState], policies: GpuPolicies) -> list[SliceContent]:
    """What to publish of the node's GPUs, in the order that the scheduler will see."""
    states = list(states)
    names = published_devices.gpu_names(state.gpu for state in states)
    views = [_View(state, names[state.gpu.uuid], policies) for state in states]
    first_to_share = sorted(views, key=lambda view: view.sharing_order)
    first_to_partition = sorted(views, key=lambda view: view.partitioning_order)
    whole = [device for view in first_to_share for device in view.whole_device()]
    found = [SliceContent(f"0-gpus-{number:02}", {"devices": part}) for number, part in _parts(whole, MAX_DEVICES)]
    found += [
        SliceContent(f"1-mig-{number:02}", {"devices": part})
        for number, part in enumerate(_filled([list(view.partition_devices()) for view in first_to_partition]))
    ]
    sets = [view.counter_set() for view in views if view.counted]
    found += [
        SliceContent(f"2-counters-{number:02}", {"sharedCounters": part})
        for number, part in _parts(sets, MAX_COUNTER_SETS)
    ]
    return found


class _View:
    """One GPU as the policy lets it be seen."""

    def __init__(self, state: GpuState, name: str, policies: GpuPolicies) -> None:
        self._state = state
        self._gpu = gpu = state.gpu
        self._name = name
        self._policies = policies
        self._mode = policies.mode(gpu)
        self._decisive = counters.decisive(gpu.mig_profiles)
        self._left: Counter[str] = counters.whole(gpu.mig_profiles)
        for instance in state.foreign:
            if (profile := gpu.profile_named(instance.profile)) is not None:
                self._left -= counters.taken(profile, instance.placement)  # what is left is never below zero
        self._may_switch = state.switchable and policies.mig_mode is MigMode.SWITCH
        self._partitions = [
            device
            for device in published_devices.partitions(gpu, name)
            if self._partitionable and counters.fits(counters.taken(device.profile, device.placement), self._left)
        ]

    @property
    def counted(self) -> bool:
        """A GPU that is published in one way only needs no counters."""
        return bool(self._partitions)

    @property
    def _partitionable(self) -> bool:
        return self._mode in (Mode.SHARE, Mode.MIG) and (self._gpu.mig_enabled or self._may_switch)

    @property
    def _usable_as_a_whole(self) -> bool:
        in_the_way = self._state.foreign or (self._gpu.mig_enabled and not self._may_switch)
        return self._mode in (Mode.SHARE, Mode.WHOLE) and not in_the_way

    @property
    def sharing_order(self) -> tuple[int, bool, bool, int]:
        """GPUs that can do nothing else first, and those in MIG mode last: switching takes time."""
        load = self._state.load if self._policies.placement is Placement.SPREAD else 0
        return load, self._gpu.mig_enabled, self._gpu.mig_capable, self._gpu.index

    @property
    def partitioning_order(self) -> tuple[bool, int]:
        return not self._gpu.mig_enabled, -self._gpu.index

    def whole_device(self) -> Iterator[JsonObject]:
        if not self._usable_as_a_whole:
            return
        memory = self._gpu.memory_bytes // devices.MEMORY_STEP * devices.MEMORY_STEP
        attributes = self._attributes(devices.TYPE_GPU) | {devices.ATTRIBUTE_UUID: {"string": self._gpu.uuid}}
        attributes |= {devices.ATTRIBUTE_INDEX: {"int": self._gpu.index}}
        device: JsonObject = {"name": self._name, "attributes": attributes}
        if self._mode is Mode.WHOLE:
            device["capacity"] = _undivided(memory)
        else:
            device["allowMultipleAllocations"] = True
            device["capacity"] = _divisible(memory)
        yield self._finished(device, counters.shared(self._gpu.mig_profiles))

    def partition_devices(self) -> Iterator[JsonObject]:
        for partition in self._partitions:
            device = {
                "name": partition.name,
                "attributes": self._partition_attributes(partition),
                "capacity": {devices.CAPACITY_MEMORY: {"value": format_bytes(partition.profile.memory_bytes)}},
            }
            yield self._finished(device, counters.taken(partition.profile, partition.placement))

    def counter_set(self) -> JsonObject:
        values = {
            name: {"value": str(self._left[name])}
            for name in counters.whole(self._gpu.mig_profiles)
            if name in self._decisive
        }
        return {"name": self._name, "counters": values}

    def _finished(self, device: JsonObject, taken: Counter[str]) -> JsonObject:
        if self.counted:
            values = {name: {"value": str(value)} for name, value in taken.items() if value and name in self._decisive}
            device["consumesCounters"] = [{"counterSet": self._name, "counters": values}]
        if (illness := self._state.illness) is not None:
            value = "lost" if illness.xid is None else f"xid-{illness.xid}"
            effect = str(self._policies.unhealthy)
            device["taints"] = [{"key": devices.TAINT_UNHEALTHY, "value": value, "effect": effect}]
        return device

    def _attributes(self, kind: str) -> JsonObject:
        gpu = self._gpu
        attributes: JsonObject = {
            devices.ATTRIBUTE_TYPE: {"string": kind},
            devices.ATTRIBUTE_MODEL: {"string": short_name(gpu.product)[:MAX_ATTRIBUTE]},
            devices.ATTRIBUTE_PRODUCT: {"string": gpu.product[:MAX_ATTRIBUTE]},
            devices.ATTRIBUTE_ARCHITECTURE: {"string": gpu.architecture},
            devices.ATTRIBUTE_DRIVER_VERSION: {"version": gpu.driver_version},
            devices.ATTRIBUTE_CUDA_VERSION: {"version": gpu.cuda_version},
            devices.ATTRIBUTE_PCI_BUS_ID: {"string": gpu.pci_bus_id},
        }
        if gpu.pcie_root is not None:
            attributes[devices.ATTRIBUTE_PCIE_ROOT] = {"string": gpu.pcie_root}
        # As the kernel has it where there is but one: GPUs without the attribute would never be of one NUMA node.
        attributes[devices.ATTRIBUTE_NUMA_NODE] = {"int": -1 if gpu.numa_node is None else gpu.numa_node}
        return attributes

    def _partition_attributes(self, partition: PartitionDevice) -> JsonObject:
        return self._attributes(devices.TYPE_MIG) | {
            devices.ATTRIBUTE_PARENT: {"string": self._gpu.uuid},
            devices.ATTRIBUTE_PROFILE: {"string": partition.profile.name},
            devices.ATTRIBUTE_PLACEMENT: {"int": partition.placement.start},
        }


def _divisible(memory: int) -> JsonObject:
    """Who asks for no amount gets all of the memory, and compute that is neither reserved nor limited."""
    step = format_bytes(devices.MEMORY_STEP)
    return {
        devices.CAPACITY_MEMORY: {
            "value": format_bytes(memory),
            "requestPolicy": {"default": format_bytes(memory), "validRange": {"min": step, "step": step}},
        },
        devices.CAPACITY_CORES: {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        },
    }


def _undivided(memory: int) -> JsonObject:
    """For one claim at a time, and only for one that asks for no part of the memory.

    The scheduler would give the whole GPU to a claim that asks for little of it. A capacity under its full name is
    found by selectors, but not by requests for `memory`: those look for a GPU that is shared.
    """
    return {
        f"{devices.DRIVER}/{devices.CAPACITY_MEMORY}": {"value": format_bytes(memory)},
        devices.CAPACITY_CORES: {"value": "100"},
    }


def _parts(items: Sequence[JsonObject], size: int) -> Iterator[tuple[int, list[JsonObject]]]:
    for number, start in enumerate(range(0, len(items), size)):
        yield number, list(items[start : start + size])


def _filled(groups: Iterable[list[JsonObject]]) -> Iterator[list[JsonObject]]:
    """Groups put together up to the limit, and none torn apart that fits: a change of one GPU changes one slice."""
    part: list[JsonObject] = []
    for group in groups:
        if part and len(part) + len(group) > MAX_DEVICES:
            yield part
            part = []
        part = part + group
        while len(part) > MAX_DEVICES:
            yield part[:MAX_DEVICES]
            part = part[MAX_DEVICES:]
    if part:
        yield part
