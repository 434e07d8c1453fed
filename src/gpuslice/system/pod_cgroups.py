"""Which pod and which container a process is in, by the path of its cgroup. Pure: no file is read here.

The kubelet makes a cgroup for every pod, and the runtime one for every container below it, with two drivers:

    cgroupfs  ROOT/kubepods[/burstable|/besteffort]/podUID/CONTAINER
    systemd   ROOT/kubepods.slice[/kubepods-burstable.slice]/kubepods-burstable-podU_I_D.slice/CONTAINER

A container that may make cgroups, and a user to whom some were delegated, can give theirs any name, also one that looks
like another pod's. So a path is read from its beginning and never searched: what stands before `kubepods` must be the
root of this kubelet, and the first pod after it is the one. Both are made by the kubelet alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_UID: Final = (
    r"(?P<uid>[0-9a-f]{8}(?P<dash>[-_])[0-9a-f]{4}(?:(?P=dash)[0-9a-f]{4}){2}(?P=dash)[0-9a-f]{12}|[0-9a-f]{32})"
)
_POD: Final = re.compile(rf"pod{_UID}", re.ASCII)
_POD_SLICE: Final = re.compile(rf"(?P<above>(?:.*-)?kubepods(?:-burstable|-besteffort)?)-pod{_UID}\.slice", re.ASCII)
_QUALITIES: Final = ("burstable", "besteffort")
_QUALITY_SLICE: Final = re.compile(r"(?:.*-)?kubepods-(?:burstable|besteffort)\.slice", re.ASCII)
_FIRST: Final = re.compile(r"kubepods|(?:.*-)?kubepods\.slice", re.ASCII)


class PodPlace(NamedTuple):
    """Where a process is. The container is as the runtime named its cgroup; empty for one of the pod itself."""

    pod_uid: str
    container: str


@dataclass(frozen=True, slots=True)
class KubeletRoot:
    """The kubelet's first cgroup, as /proc shows it to the agent: of an agent outside of pods, with either driver."""

    paths: tuple[tuple[str, ...], ...] = (("kubepods",), ("kubepods.slice",))

    @classmethod
    def seen_from(cls, own_cgroups: str) -> KubeletRoot:
        """By the agent's own /proc/self/cgroup: an agent in a pod is below the same root as its tenants.

        Of a cluster inside another cluster's pod, the agent's own kubelet is the innermost.
        """
        for path in _paths(own_cgroups):
            for index in range(len(path) - 1, -1, -1):
                if _FIRST.fullmatch(path[index]) and _below(path[index], path[index + 1 :]) is not None:
                    return cls((tuple(path[: index + 1]),))
        return cls()

    def place(self, cgroups: str) -> PodPlace | None:
        """Where a process with that /proc/PID/cgroup is; None if in no pod, or if its cgroups contradict each other."""
        places = {place for path in _paths(cgroups) if (place := self._place(path)) is not None}
        return places.pop() if len(places) == 1 else None

    def _place(self, path: Sequence[str]) -> PodPlace | None:
        if path and path[0] == "..":
            return _relative(path)
        for root in self.paths:
            if tuple(path[: len(root)]) == root:
                return _below(root[-1], path[len(root) :])
        return None


def _paths(cgroups: str) -> list[list[str]]:
    """The components of every hierarchy's path: one line for version 2, several for version 1."""
    lines = (line.split(":", 2) for line in cgroups.split("\n"))
    return [[part for part in line[2].split("/") if part] for line in lines if len(line) == 3]


def _below(first: str, path: Sequence[str]) -> PodPlace | None:
    """The pod of what stands below the kubelet's first cgroup."""
    if first == "kubepods":
        return _of_pod(path[1:] if path and path[0] in _QUALITIES else path)
    name = first.removesuffix(".slice")
    for quality in _QUALITIES:
        if path and path[0] == f"{name}-{quality}.slice":
            return _of_slice(f"{name}-{quality}", path[1:])
    return _of_slice(name, path)


def _of_pod(path: Sequence[str]) -> PodPlace | None:
    match = _POD.fullmatch(path[0]) if path else None
    return None if match is None else _named(match, path)


def _of_slice(above: str, path: Sequence[str]) -> PodPlace | None:
    match = _POD_SLICE.fullmatch(path[0]) if path else None
    return None if match is None or match["above"] != above else _named(match, path)


def _named(match: re.Match[str], path: Sequence[str]) -> PodPlace:
    return PodPlace(match["uid"].replace("_", "-"), path[1] if len(path) > 1 else "")


def _relative(path: Sequence[str]) -> PodPlace | None:
    """The pod of a path outside of the agent's own cgroup namespace, which begins with `..` for every level up.

    From there on it is the end of the kubelet's hierarchy: all of it, or what is below the quality of service, or the
    pod alone, as the agent's own place in it decides.
    """
    levels = next((index for index, part in enumerate(path) if part != ".."), len(path))
    rest = path[levels:]
    if not rest:
        return None
    if _FIRST.fullmatch(rest[0]):
        return _below(rest[0], rest[1:])
    if rest[0] in _QUALITIES:
        return _of_pod(rest[1:])
    if _QUALITY_SLICE.fullmatch(rest[0]):
        return _of_slice(rest[0].removesuffix(".slice"), rest[1:])
    match = _POD.fullmatch(rest[0]) or _POD_SLICE.fullmatch(rest[0])
    return None if match is None else _named(match, rest)
