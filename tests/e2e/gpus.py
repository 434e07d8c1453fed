"""Pods that ask for GPUs, in several dialects, and what tests ask of their slices."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpuslice_cluster.clusters import ClusterError
from tests.e2e.pods import CUDA_TEST, pod, run

if TYPE_CHECKING:
    from gpuslice_cluster.clusters import Cluster

GIB = 1024**3


def gpu_pod(
    name: str, limits: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """A pod that waits to be told what to do with its slice."""
    made = pod(name, "sleep", "86400", image=CUDA_TEST, container={"resources": {"limits": limits or {}}})
    made["metadata"]["annotations"] = annotations or {}
    return made


def total(cluster: Cluster, namespace: str, name: str) -> int:
    """How many bytes the driver says the GPU has, inside the pod."""
    answer = run(cluster, namespace, name, "cuda-test", "memory")
    return int(answer.split()[1])


def filled(cluster: Cluster, namespace: str, name: str, piece: int) -> tuple[int, int]:
    """How many bytes a program in the pod gets, and with which error it is refused more."""
    answer = run(cluster, namespace, name, "cuda-test", "fill", str(piece)).split()
    return int(answer[1]), int(answer[-1])


def is_refused(cluster: Cluster, namespace: str, name: str, *command: str) -> str:
    """What the command says that must fail in the pod."""
    try:
        run(cluster, namespace, name, *command)
    except ClusterError as error:
        return str(error)
    raise AssertionError(f"{' '.join(command)} did not fail")


def devices(cluster: Cluster, namespace: str, name: str | None = None) -> list[str]:
    """The devices that the scheduler gave to the claims of a pod, or of all pods of the namespace."""
    claims = json.loads(cluster.kubectl("get", "resourceclaims", "-n", namespace, "-o", "json"))["items"]
    return [
        result["device"]
        for claim in claims
        if name is None or any(owner["name"] == name for owner in claim["metadata"].get("ownerReferences", ()))
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    ]
