"""The agent on every GPU node: its rights and its DaemonSet. All that it is started with is in `_arguments`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.installing import network_policies
from gpuslice.installing.objects import Object, account, labels, metadata, rule, selector
from gpuslice.installing.options import AGENT, METRICS_READER
from gpuslice.model import devices
from gpuslice.model.policies import Backend

if TYPE_CHECKING:
    from gpuslice.installing.options import Options
    from gpuslice.model.settings import Settings

_METRICS_PORT: Final = 9500
_STATE: Final = "/run/gpuslice"
_KUBELET: Final = "/var/lib/kubelet"
_CDI: Final = "/var/run/cdi"
#: What the agent shares with the node.
_FOLDERS: Final = {"state": _STATE, "kubelet": _KUBELET, "cdi": _CDI, "devices": "/dev"}


def _arguments(options: Options) -> list[str]:
    return [
        "agent",
        "--kubernetes",
        f"--state={_STATE}",
        f"--kubelet-dir={_KUBELET}",
        f"--cdi-dir={_CDI}",
        f"--metrics=0.0.0.0:{_METRICS_PORT}",
        "--log=json",
        *(_slots(options.settings) if options.node_backend is Backend.EXTENDED else ()),
    ]


def _slots(settings: Settings) -> list[str]:
    """The webhook has the same number of slots per GPU."""
    return [
        f"--backend={Backend.EXTENDED}",
        f"--shared-resource={settings.shared_resource}",
        f"--whole-resource={settings.whole_resource}",
        f"--slots-per-gpu={settings.slots_per_gpu}",
    ]


def objects(options: Options) -> list[Object]:
    return [
        *account(AGENT, options, _rights()),
        _metrics_reader(),
        network_policies.policy(AGENT, options, metrics=_METRICS_PORT),
        _daemon_set(options),
    ]


def _metrics_reader() -> Object:
    """For what scrapes metrics: bind it to Prometheus' service account."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata(METRICS_READER),
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }


def _rights() -> list[Object]:
    return [
        rule("", ["nodes"], ["get"]),
        rule("resource.k8s.io", ["resourceslices"], ["get", "list", "watch", "create", "update", "delete"]),
        rule("resource.k8s.io", ["resourceclaims"], ["get"]),
        rule("resource.k8s.io", ["resourceclaims/status"], ["patch", "update"]),
        # Of claims on its own node, since Kubernetes 1.36.
        rule("resource.k8s.io", ["resourceclaims/driver"], ["associated-node:patch", "associated-node:update"]),
        rule("events.k8s.io", ["events"], ["create", "patch"]),
        # To find the account of a scraper's token, and whether it may read metrics.
        rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
        rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
    ]


def _daemon_set(options: Options) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(AGENT, options),
        "spec": {
            "selector": {"matchLabels": selector(AGENT)},
            # Tenants live through the agent's absence for a while, but two agents on a node are one too many.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "template": {"metadata": {"labels": labels(AGENT)}, "spec": _pod(options)},
        },
    }


def _pod(options: Options) -> Object:
    container = {
        "name": "agent",
        "image": options.image,
        "args": _arguments(options),
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "ports": [{"name": "metrics", "containerPort": _METRICS_PORT}],
        "startupProbe": {"tcpSocket": {"port": "metrics"}, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {"tcpSocket": {"port": "metrics"}, "periodSeconds": 10},
        # It talks to the driver, watches processes of all containers and hands out devices.
        "securityContext": {"privileged": True},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "volumeMounts": [
            # What is mounted on the node later is seen here; what is mounted below the state is seen by the node.
            {
                "name": name,
                "mountPath": path,
                "mountPropagation": "Bidirectional" if name == "state" else "HostToContainer",
            }
            for name, path in _FOLDERS.items()
        ],
    }
    return {
        "serviceAccountName": AGENT,
        "priorityClassName": "system-node-critical",
        "hostPID": True,  # the agent knows a tenant by the node's number for its process
        "affinity": {"nodeAffinity": _on_gpu_nodes()},
        # Wherever a GPU is, whatever else may not run there.
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for name, path in _FOLDERS.items()
        ],
    }


def _on_gpu_nodes() -> Object:
    terms = [
        {"matchExpressions": [{"key": label, "operator": "In", "values": ["true"]}]} for label in devices.NODE_LABELS
    ]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
