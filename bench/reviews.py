"""AdmissionReviews as an API server sends them: pods of a Deployment, some 5,700 bytes each."""

from __future__ import annotations

import json
from typing import Any, Final

REVIEW_BYTES: Final = 5700
CASTSLICE: Final = {"castops.io/optimize": "true"}


def review_body(
    limits: dict[str, str],
    annotations: dict[str, str],
    *,
    namespace: str = "research",
    number: int = 0,
    container_name: str = "main",
) -> bytes:
    """The `number`th pod of its workload, padded with what real ones have: an environment."""
    resources = {"limits": {"cpu": "4", "memory": "16Gi"} | limits, "requests": {"cpu": "2", "memory": "16Gi"} | limits}
    token = {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access", "readOnly": True}
    container = {
        "name": container_name,
        "image": "registry.example/team/training:2026-11-01",
        "command": ["python", "-m", "train"],
        "env": [],
        "resources": resources,
        "volumeMounts": [token],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    metadata = {
        "name": f"training-6d4b75cb6d-{number:05x}",
        "generateName": "training-6d4b75cb6d-",
        "namespace": namespace,
        "labels": {"app": "training", "pod-template-hash": "6d4b75cb6d", "team": "vision"},
        "annotations": annotations
        | {"example.com/checksum": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15"},
        "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], "serviceAccountName": "default", "schedulerName": "default-scheduler"},
    }
    request: dict[str, Any] = {
        "uid": f"705ab4f5-6393-11e8-b7cc-{number:012x}",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": namespace,
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["system:nodes"]},
        "object": pod,
        "dryRun": False,
    }
    document = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    environment: list[dict[str, str]] = container["env"]  # type: ignore[assignment]  # the list above
    variable = {"name": "SETTING_000", "value": "a value as applications have them"}
    missing = REVIEW_BYTES - len(_compact(document))
    count = round(missing / len(_compact(variable) + b","))
    environment += [variable | {"name": f"SETTING_{index:03}"} for index in range(count)]
    return _compact(document)


def castslice_pods(pods: int, workloads: int) -> list[bytes]:
    """Pods that CastSlice rewrites, of so many workloads in turn. They differ in what is read: containers' names.

    The pods of one workload differ in their names, and in an annotation that admission does not read.
    """
    gpu = {"nvidia.com/gpu": "1"}
    return [
        review_body(
            gpu,
            CASTSLICE | {"example.com/step": f"{number}"},
            number=number,
            container_name=f"main-{number % workloads}",
        )
        for number in range(pods)
    ]


def _compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
