"""The patch of a pod, built directly from what is to change: a pod is never compared with itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from gpuslice.model.pods import Place, Pod, Toleration

Operation = dict[str, Any]


@dataclass(slots=True)
class ContainerEdit:
    """What changes in one container's resources."""

    place: Place
    removed: list[str] = field(default_factory=list)
    added: dict[str, int] = field(default_factory=dict)
    claims: list[str] = field(default_factory=list)

    def operations(self) -> list[Operation]:
        base = f"{self.place.pointer}/resources"
        if self.place.container.resources is None:
            fresh: Operation = {}
            if self.added:
                fresh["limits"] = {name: str(count) for name, count in self.added.items()}
            if self.claims:
                fresh["claims"] = [{"name": name} for name in self.claims]
            return [_add(base, fresh)] if fresh else []
        operations = self._section(f"{base}/limits", self.place.limits, always=True)
        operations += self._section(f"{base}/requests", self.place.requests, always=False)
        return operations + _append(f"{base}/claims", [{"name": name} for name in self.claims], self.place.claims)

    def _section(self, base: str, present: dict[str, Any], *, always: bool) -> list[Operation]:
        """Limits always get what is added; requests where they had what it replaces (Kubernetes fills in the rest)."""
        removed = [name for name in self.removed if name in present and name not in self.added]
        operations: list[Operation] = [{"op": "remove", "path": f"{base}/{escape(name)}"} for name in removed]
        if not always and not any(name in present for name in self.removed):
            return operations
        added = {name: str(count) for name, count in self.added.items() if str(present.get(name)) != str(count)}
        if added and not present:
            return [*operations, _add(base, added)]
        return operations + [_add(f"{base}/{escape(name)}", count) for name, count in added.items()]


@dataclass(slots=True)
class PodEdit:
    """Everything that changes in one pod."""

    pod: Pod
    containers: dict[str, ContainerEdit] = field(default_factory=dict)
    #: Claim name -> template name.
    claims: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    node_selector: dict[str, str] = field(default_factory=dict)
    scheduler: str | None = None
    #: Scheduling gates and finalizers that are taken off.
    ungated: frozenset[str] = frozenset()

    def container(self, place: Place) -> ContainerEdit:
        return self.containers.setdefault(place.pointer, ContainerEdit(place))

    def resource_operations(self) -> list[Operation]:
        """What makes the pod get its slices."""
        operations = [operation for edit in self.containers.values() for operation in edit.operations()]
        spec = self.pod.spec
        assert spec is not None, "a pod that asks for something has a spec"
        claims = [{"name": name, "resourceClaimTemplateName": template} for name, template in self.claims.items()]
        operations += _append("/spec/resourceClaims", claims, spec.resource_claims)
        present = spec.tolerations or []
        missing = [msgspec.to_builtins(wanted) for wanted in self.tolerations if wanted not in present]
        operations += _append("/spec/tolerations", missing, present)
        if self.scheduler is not None:
            operations.append(_add("/spec/schedulerName", self.scheduler))
        if self.ungated:
            gates = [gate.name for gate in spec.scheduling_gates or ()]
            operations += _remove("/spec/schedulingGates", gates, self.ungated)
            finalizers = (self.pod.metadata.finalizers if self.pod.metadata else None) or []
            operations += _remove("/metadata/finalizers", finalizers, self.ungated)
        return operations + _merge("/spec/nodeSelector", self.node_selector, spec.node_selector)

    def metadata_operations(self) -> list[Operation]:
        """What tells people about it."""
        wanted = {"labels": self.labels, "annotations": self.annotations}
        if self.pod.metadata is None:
            return [_add("/metadata", wanted)]
        operations = []
        for name, present in (("labels", self.pod.labels), ("annotations", self.pod.annotations)):
            changed = {key: text for key, text in wanted[name].items() if present.get(key) != text}
            operations += _merge(f"/metadata/{name}", changed, present)
        return operations


def apply(document: Any, operations: list[Operation]) -> Any:  # noqa: ANN401 - JSON is what it is
    """The document after the patch, for where there is no API server to apply it. Ours only add and remove."""
    document = msgspec.json.decode(msgspec.json.encode(document))
    for operation in operations:
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        target = document
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if operation["op"] == "remove":
            del target[int(last) if isinstance(target, list) else last]
        elif isinstance(target, list):
            target.append(operation["value"])
        else:
            target[last] = operation["value"]
    return document


@lru_cache(maxsize=1024)  # a cluster has few names of resources and annotations
def escape(key: str) -> str:
    """A key as one step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _add(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _remove(path: str, present: list[str], removed: frozenset[str]) -> list[Operation]:
    """The last of them first, so that the places of the others hold."""
    places = [place for place, name in enumerate(present) if name in removed]
    return [{"op": "remove", "path": f"{path}/{place}"} for place in reversed(places)]


def _append(path: str, items: list[Any], present: list[Any] | None) -> list[Operation]:
    if not items:
        return []
    return [_add(f"{path}/-", item) for item in items] if present else [_add(path, items)]


def _merge(path: str, items: dict[str, str], present: dict[str, str] | None) -> list[Operation]:
    if not items:
        return []
    if not present:
        return [_add(path, items)]
    return [_add(f"{path}/{escape(key)}", text) for key, text in items.items()]
