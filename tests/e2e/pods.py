"""Pods as tests want them, and what tests ask of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuslice_cluster.clusters import Cluster

BUSYBOX = "gpuslice.io/busybox:dev"
CUDA_TEST = "gpuslice.io/cuda-test:dev"
GPUSLICE = "gpuslice.io/gpuslice:dev"


def pod(name: str, *command: str, image: str = BUSYBOX, container: dict[str, Any] | None = None) -> dict[str, Any]:
    """One container, which ends soon when it is told to."""
    main = {"name": "main", "image": image, "command": list(command), **(container or {})}
    metadata = {"name": name, "labels": {"app": name}}
    spec = {"containers": [main], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def start(cluster: Cluster, namespace: str, *manifests: dict[str, Any]) -> None:
    """Applies them, and returns when all their containers run and are ready."""
    documents = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    cluster.kubectl("apply", "--namespace", namespace, "--filename=-", input=json.dumps(documents))
    names = [f"pod/{each['metadata']['name']}" for each in manifests if each["kind"] == "Pod"]
    cluster.kubectl("wait", "--namespace", namespace, "--for=condition=Ready", "--timeout=120s", *names)


def run(cluster: Cluster, namespace: str, name: str, *command: str) -> str:
    """What a command prints that is run in the pod's container."""
    return cluster.kubectl("exec", "--namespace", namespace, name, "--", *command)


def read(cluster: Cluster, namespace: str, resource: str, path: str) -> str:
    """One field of an object."""
    return cluster.kubectl("get", "--namespace", namespace, resource, f"--output=jsonpath={{{path}}}")


def processes_of(pod_uid: str) -> set[int]:
    """By the control groups that the kubelet made for the pod."""
    files = Path("/sys/fs/cgroup").glob(f"**/*{pod_uid}*/**/cgroup.procs")
    return {int(process) for file in files for process in file.read_text().split()}
