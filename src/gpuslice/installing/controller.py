"""The controller: its rights and its Deployment. Two run, and one of them works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.admission import slicepolicies
from gpuslice.installing import network_policies
from gpuslice.installing.objects import Object, account, confined_pod, deployment, probe, rule
from gpuslice.installing.options import CONTROLLER

if TYPE_CHECKING:
    from gpuslice.installing.options import Options

_REPLICAS: Final = 2
_PORT: Final = 8080


def objects(options: Options) -> list[Object]:
    return [
        *account(CONTROLLER, options, _rights(), _rights_at_home()),
        network_policies.policy(CONTROLLER, options, metrics=_PORT),
        deployment(CONTROLLER, options, _REPLICAS, _pod(options)),
    ]


def _rights() -> list[Object]:
    look = ["get", "list", "watch"]
    return [
        rule(slicepolicies.GROUP, [slicepolicies.PLURAL], look),
        rule(slicepolicies.GROUP, [f"{slicepolicies.PLURAL}/status"], ["patch"]),
        rule("", ["pods"], look),
        rule("resource.k8s.io", ["resourceclaimtemplates"], [*look, "patch", "delete"]),
        rule("events.k8s.io", ["events"], ["create", "patch"]),
    ]


def _rights_at_home() -> list[Object]:
    return [
        rule("coordination.k8s.io", ["leases"], ["get", "update"], [CONTROLLER]),
        rule("coordination.k8s.io", ["leases"], ["create"]),  # has no name yet, so none can be given
    ]


def _pod(options: Options) -> Object:
    container = {
        "name": "controller",
        "image": options.image,
        "args": ["controller", f"--namespace={options.namespace}", f"--port={_PORT}", "--log=json"],
        "ports": [{"name": "metrics", "containerPort": _PORT}],
        "startupProbe": probe("/healthz", "metrics", periodSeconds=1, failureThreshold=60),
        "livenessProbe": probe("/healthz", "metrics", periodSeconds=10, failureThreshold=3),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
    }
    return confined_pod(CONTROLLER, container)
