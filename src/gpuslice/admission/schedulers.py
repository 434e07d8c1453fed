"""Which scheduler places a pod that gets a slice.

What admission writes, Kubernetes' own scheduler understands. Those of other projects serve their own dialects, and a
pod that no longer speaks one, and still names its scheduler, would wait for ever, or be placed by two. So does a pod
with a scheduling gate that only another project's controller opens. So by default such pods are taken over. The names
are declared by the dialects; any other name can be a second kube-scheduler of the cluster's own, and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import registry
from gpuslice.model.policies import OtherSchedulers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.admission.patching import PodEdit
    from gpuslice.dialects.recognizing import Reading
    from gpuslice.model.pods import Pod
    from gpuslice.model.policies import Rule

_DEFAULT: Final = "default-scheduler"
_USUAL: Final = (None, "", _DEFAULT)


class NamedScheduler:
    """The scheduler that a pod names, gates that hold it back from being scheduled, and what the rule says of both."""

    __slots__ = ("_gates", "_name", "_peer", "_rule")

    def __init__(self, pod: Pod, rule: Rule) -> None:
        spec = pod.spec
        self._name = spec.scheduler_name if spec else None
        self._peer = registry.SCHEDULERS.get(self._name or "")
        self._rule = rule
        self._gates = _gates(pod)

    def serves_itself(self, readings: Iterable[Reading]) -> bool:
        """Whether the pod is left to its own project: all that it asks is in dialects which that one reads."""
        if self._rule.other_schedulers is not OtherSchedulers.LEAVE_ALONE:
            return False
        served = frozenset() if self._peer is None else registry.SERVED_BY_SCHEDULER[self._peer.name]
        for gate in self._gates:
            served |= registry.SERVED_BEHIND_GATE[gate]
        return all(reading.dialect in served for reading in readings)

    def take_over(self, edit: PodEdit) -> list[str]:
        """Has Kubernetes' own scheduler place a pod with a slice of ours, and tells its author so."""
        if self._peer is not None:
            edit.scheduler = _DEFAULT
        edit.ungated = frozenset(self._gates)
        return [*filter(None, [self._warning]), *map(self._warning_of_gate, self._gates)]

    def take_over_whole_gpus(self, edit: PodEdit) -> list[str]:
        """The same for a pod that gets whole GPUs which only Kubernetes' own scheduler can count."""
        if self._peer is None or self._rule.other_schedulers is OtherSchedulers.LEAVE_ALONE:
            return []
        edit.scheduler = _DEFAULT
        told = (
            f"spec.schedulerName: no node offers whole GPUs that {self._peer.name} could count, so {_DEFAULT} places "
            f"this pod; {self._peer.knows} do not hold for it"
        )
        return [told]

    @property
    def warning_of_whole_gpus(self) -> str:
        """What the author of a pod should know that its own scheduler places; empty if it names none of a peer's."""
        if self._peer is None:
            return ""
        return (
            f"spec.schedulerName: {self._peer.name} places this pod, if it is installed, and it counts no GPUs that "
            f"gpuslice offers by claims; leave it out for Kubernetes' own"
        )

    @property
    def _warning(self) -> str:
        if self._name in _USUAL:
            return ""
        if self._peer is not None:
            return (
                f"spec.schedulerName: {self._peer.name} does not understand what gpuslice made of this pod, so "
                f"{_DEFAULT} places it; {self._peer.knows} do not hold for it"
            )
        return (
            f"spec.schedulerName: {self._name!r} will place this pod, and must understand what gpuslice made of it; "
            "leave it out for Kubernetes' own"
        )

    def _warning_of_gate(self, name: str) -> str:
        field, peer = self._gates[name], registry.GATES[name].of
        return f"{field}: {name} waits for {peer}, and gpuslice serves this pod, so it is taken off"


def _gates(pod: Pod) -> dict[str, str]:
    """Those of peers on the pod, and where each stands."""
    found: dict[str, str] = {}
    gates = [gate.name for gate in (pod.spec.scheduling_gates if pod.spec else None) or ()]
    for path, names in (
        ("spec.schedulingGates", gates),
        ("metadata.finalizers", (pod.metadata.finalizers if pod.metadata else None) or ()),
    ):
        for place, name in enumerate(names):
            if name in registry.GATES:
                found.setdefault(name, f"{path}[{place}]")
    return found
