"""Which scheduler places a pod that gets a slice.

What admission writes, Kubernetes' own scheduler understands. Those of other projects serve their own dialects, and a
pod that no longer speaks one, and still names its scheduler, would wait for ever, or be placed by two. So by default
such pods are taken over. The names are declared by the dialects; any other name can be a second kube-scheduler of the
cluster's own, and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import registry
from gpuslice.model.policies import OtherSchedulers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.dialects.recognizing import Reading
    from gpuslice.model.pods import Pod
    from gpuslice.model.policies import Rule

_DEFAULT: Final = "default-scheduler"
_USUAL: Final = (None, "", _DEFAULT)


class NamedScheduler:
    """The scheduler that a pod names, and what the rule says of it."""

    __slots__ = ("_name", "_peer", "_rule")

    def __init__(self, pod: Pod, rule: Rule) -> None:
        self._name = pod.spec.scheduler_name if pod.spec else None
        self._peer = registry.SCHEDULERS.get(self._name or "")
        self._rule = rule

    def serves_itself(self, readings: Iterable[Reading]) -> bool:
        """Whether the pod is left to its scheduler: all that it asks is in dialects which that one reads."""
        if self._peer is None or self._rule.other_schedulers is not OtherSchedulers.LEAVE_ALONE:
            return False
        served = registry.SERVED_BY_SCHEDULER[self._peer.name]
        return all(reading.dialect in served for reading in readings)

    @property
    def instead(self) -> str | None:
        """The scheduler that takes over a pod with a slice of ours; None if its own stays."""
        return None if self._peer is None else _DEFAULT

    @property
    def warning(self) -> str:
        """What the author of a pod with a slice of ours should know; empty if it is nothing."""
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
