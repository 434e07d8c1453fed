"""The controller: its rights and its Deployment. Two run, and one of them works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.admission.registration import webhook_configurations
from gpuslice.installing import network_policies, settings
from gpuslice.installing.objects import Object, account, confined_pod, deployment, probe, rule
from gpuslice.installing.options import CONTROLLER, WEBHOOK
from gpuslice.policies import definition, schema

if TYPE_CHECKING:
    from gpuslice.installing.options import Options

_REPLICAS: Final = 2
_PORT: Final = 8080
_ADMISSION: Final = "admissionregistration.k8s.io"
_CONFIGURATIONS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


def objects(options: Options) -> list[Object]:
    return [
        *account(CONTROLLER, options, _rights(), _rights_at_home(options)),
        network_policies.policy(CONTROLLER, options, metrics=_PORT),
        # With a webhook inside, the settings are the webhook's.
        *(settings.objects(options) if options.url is not None else ()),
        deployment(CONTROLLER, options, _REPLICAS, _pod(options), settings.pod_annotations(options)),
    ]


def _rights() -> list[Object]:
    look = ["get", "list", "watch"]
    return [
        rule(schema.GROUP, [schema.PLURAL], look),
        rule(schema.GROUP, [f"{schema.PLURAL}/status"], ["patch"]),
        rule("apiextensions.k8s.io", ["customresourcedefinitions"], look, [definition.NAME]),
        rule("", ["pods", "namespaces"], look),
        rule("resource.k8s.io", ["resourceclaimtemplates"], [*look, "patch", "delete"]),
        rule("events.k8s.io", ["events"], ["create", "patch"]),
        rule(_ADMISSION, _CONFIGURATIONS, [*look, "patch"], [webhook_configurations.NAME]),
        rule(_ADMISSION, _CONFIGURATIONS, ["create"]),  # has no name yet, so none can be given
    ]


def _rights_at_home(options: Options) -> list[Object]:
    service = [rule("", ["services"], ["get"], [WEBHOOK])] if options.url is None else []
    return [
        *service,
        rule("coordination.k8s.io", ["leases"], ["get", "update"], [CONTROLLER]),
        rule("coordination.k8s.io", ["leases"], ["create"]),  # has no name yet, so none can be given
    ]


def _pod(options: Options) -> Object:
    mounts, volumes = settings.mounts(options), settings.volumes(options)
    container = {
        "name": "controller",
        "image": options.image,
        "args": _arguments(options),
        "ports": [{"name": "metrics", "containerPort": _PORT}],
        "startupProbe": probe("/healthz", "metrics", periodSeconds=1, failureThreshold=60),
        "livenessProbe": probe("/healthz", "metrics", periodSeconds=10, failureThreshold=3),
        "readinessProbe": probe("/readyz", "metrics", periodSeconds=5, failureThreshold=3),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        **({"volumeMounts": mounts} if mounts else {}),
    }
    return confined_pod(CONTROLLER, container, **({"volumes": volumes} if volumes else {}))


def _arguments(options: Options) -> list[str]:
    """What the webhook configurations are made of is said again here: the controller keeps them."""
    webhooks = options.webhooks
    where = (
        f"--webhook-service={options.namespace}/{WEBHOOK}" if options.url is None else f"--webhook-url={options.url}"
    )
    return [
        "controller",
        f"--namespace={options.namespace}",
        f"--port={_PORT}",
        where,
        *(f"--exclude-namespace={name}" for name in webhooks.excluded_namespaces),
        *([f"--inject-ca-from={webhooks.certificate}"] if webhooks.certificate is not None else ()),
        *settings.arguments(options),
        "--log=json",
    ]
