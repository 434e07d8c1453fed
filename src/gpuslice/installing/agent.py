"""The agent on every GPU node: its rights and its DaemonSet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.installing import configuration, network_policies, node_identity
from gpuslice.installing.objects import Object, account, labels, metadata, probe, rule, selector
from gpuslice.installing.options import AGENT, METRICS_READER
from gpuslice.model import devices

if TYPE_CHECKING:
    from gpuslice.installing.options import Options


def objects(options: Options) -> list[Object]:
    port = _metrics_port(options)
    return [
        *account(AGENT, options, _rights()),
        *node_identity.objects(options),
        _metrics_reader(),
        *([network_policies.policy(AGENT, options, metrics=port)] if port is not None else ()),
        _daemon_set(options),
    ]


def _metrics_port(options: Options) -> int | None:
    """None if the agents serve no metrics."""
    address = options.configuration.agent.metrics
    return None if address == "none" else int(address.rpartition(":")[2])


def _folders(options: Options) -> dict[str, str]:
    """What the agent shares with the node."""
    agent = options.configuration.agent
    assert agent.state is not None, "the installation says one"
    folders = {"state": agent.state, "kubelet": agent.kubelet.folder, "cdi": agent.kubelet.cdi_folder}
    return folders | {"devices": "/dev"}


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
            "template": {
                "metadata": {"labels": labels(AGENT), "annotations": configuration.pod_annotations(options)},
                "spec": _pod(options),
            },
        },
    }


def _pod(options: Options) -> Object:
    folders, port = _folders(options), _metrics_port(options)
    probes = {
        "ports": [{"name": "metrics", "containerPort": port}],
        # A node with thousands of claims takes a while to find them all again.
        "startupProbe": probe("/healthz", "metrics", periodSeconds=2, failureThreshold=60),
        # To kill an agent whose node is merely slow helps no tenant: five minutes of silence are not slowness.
        "livenessProbe": probe("/healthz", "metrics", periodSeconds=30, timeoutSeconds=10, failureThreshold=10),
        "readinessProbe": probe("/readyz", "metrics", periodSeconds=5, timeoutSeconds=5, failureThreshold=3),
    }
    container = {
        "name": "agent",
        "image": options.image,
        "args": ["agent", *configuration.ARGUMENTS],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        **(probes if port is not None else {}),
        # It talks to the driver, watches processes of all containers and hands out devices.
        "securityContext": {"privileged": True, "runAsUser": 0},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "volumeMounts": [*(_mount(name, path) for name, path in folders.items()), *configuration.mounts()],
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
            *(
                {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                for name, path in folders.items()
            ),
            *configuration.volumes(),
        ],
    }


def _mount(name: str, path: str) -> Object:
    """What is mounted on the node later is seen here; what is mounted below the state is seen by the node."""
    propagation = "Bidirectional" if name == "state" else "HostToContainer"
    return {"name": name, "mountPath": path, "mountPropagation": propagation}


def _on_gpu_nodes() -> Object:
    terms = [
        {"matchExpressions": [{"key": label, "operator": "In", "values": ["true"]}]} for label in devices.NODE_LABELS
    ]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
