"""What the objects of all parts have in common: names, labels, rights, and how containers are confined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.installing.options import Options

Object = dict[str, Any]

#: No user of the node has this number.
_USER: Final = 65532
_RBAC: Final = "rbac.authorization.k8s.io"


def metadata(name: str, options: Options | None = None) -> Object:
    """With the namespace, for what is in one."""
    made: Object = {"name": name}
    if options is not None:
        made["namespace"] = options.namespace
    return made | {"labels": labels(name)}


def labels(name: str) -> dict[str, str]:
    return {**selector(name), "app.kubernetes.io/part-of": "gpuslice"}


def selector(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name}


def rule(group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> Object:
    made: Object = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return made | ({"resourceNames": list(names)} if names else {})


def account(name: str, options: Options, everywhere: Sequence[Object], here: Sequence[Object] = ()) -> list[Object]:
    """A service account, with its rights in the whole cluster and those in its own namespace."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": options.namespace}
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(name, options)},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": metadata(name),
            "rules": list(everywhere),
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata(name),
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    ]
    if here:
        objects += [
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "Role",
                "metadata": metadata(name, options),
                "rules": list(here),
            },
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": metadata(name, options),
                "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
                "subjects": [subject],
            },
        ]
    return objects


def deployment(
    name: str, options: Options, replicas: int, pod: Object, annotations: dict[str, str] | None = None
) -> Object:
    """The annotations are the pods' own: others make other pods."""
    template = {"labels": labels(name)} | ({"annotations": annotations} if annotations else {})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(name, options),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": selector(name)},
            # A new one is ready before an old one goes.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": template, "spec": pod},
        },
    }


def confined_pod(name: str, container: Object, **more: Any) -> Object:  # noqa: ANN401 - fields of the API
    """A pod as Kubernetes' restricted standard wants it."""
    confined = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    return {
        "serviceAccountName": name,
        "priorityClassName": "system-cluster-critical",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": _apart(name),
        "containers": [container | {"securityContext": confined}],
        **more,
    }


def probe(path: str, port: str, **more: int) -> Object:
    return {"httpGet": {"path": path, "port": port}, **more}


def _apart(name: str) -> Object:
    """Not two on one node, if there is another."""
    term = {"labelSelector": {"matchLabels": selector(name)}, "topologyKey": "kubernetes.io/hostname"}
    wanted = {"weight": 100, "podAffinityTerm": term}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wanted]}}
