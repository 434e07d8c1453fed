"""A pod that runs, as it was when it was created: without what API server, scheduler and kubelet wrote into it.

A controller's pods are one workload. Which, the pod itself says: a Deployment's name is that of its ReplicaSet without
the hash that the pod's label repeats.
"""

from __future__ import annotations

from typing import Any, Final

_WRITTEN_METADATA: Final = (
    *("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"),
    *("deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences"),
)
_FINISHED: Final = ("Succeeded", "Failed")
_HASH_LABEL: Final = "pod-template-hash"
#: The kubelet's copy of a pod that it has from a file: nothing decides about it.
_MIRROR: Final = "kubernetes.io/config.mirror"


def as_created(pod: dict[str, Any]) -> dict[str, Any]:
    """spec.nodeName goes too: of nearly all pods the scheduler wrote it."""
    metadata = {name: value for name, value in pod["metadata"].items() if name not in _WRITTEN_METADATA}
    spec = {name: value for name, value in (pod.get("spec") or {}).items() if name != "nodeName"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def owner(pod: dict[str, Any]) -> str:
    """`Deployment team/web`, or the pod itself."""
    metadata = pod["metadata"]
    place = metadata.get("namespace", "")
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            kind, name = reference["kind"], reference["name"]
            suffix = f"-{(metadata.get('labels') or {}).get(_HASH_LABEL, '')}"
            if kind == "ReplicaSet" and suffix != "-" and name.endswith(suffix):
                kind, name = "Deployment", name.removesuffix(suffix)
            return f"{kind} {place}/{name}"
    return f"Pod {place}/{metadata['name']}"


def is_mirror(pod: dict[str, Any]) -> bool:
    return _MIRROR in (pod["metadata"].get("annotations") or {})


def has_ended(pod: dict[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in _FINISHED
