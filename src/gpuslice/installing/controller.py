"""The controller: its rights and its Deployment. Two run, and one of them works."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from gpuslice.accounting.budgets import schema as budgets
from gpuslice.admission.registration import webhook_configurations
from gpuslice.controller.reconcilers.budget_status import DEFAULT_BUDGET
from gpuslice.installing import configuration, network_policies
from gpuslice.installing.objects import Object, account, confined_pod, deployment, probe, rule
from gpuslice.installing.options import CONTROLLER, WEBHOOK
from gpuslice.policies import crd_watch, schema
from gpuslice.quotas import schema as quotas

if TYPE_CHECKING:
    from gpuslice.installing.options import Options

_REPLICAS: Final = 2
_ADMISSION: Final = "admissionregistration.k8s.io"
_CONFIGURATIONS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


def objects(options: Options) -> list[Object]:
    return [
        *account(CONTROLLER, options, _rights(), _rights_at_home(options)),
        network_policies.policy(CONTROLLER, options, metrics=options.configuration.controller.port),
        _deployment(options),
    ]


def _deployment(options: Options) -> Object:
    """A volume with a file of SQLite can be on one node only, so that one controller runs, and ends before the next."""
    annotations = configuration.pod_annotations(options)
    if options.configuration.ledger.volume_claim is None:
        return deployment(CONTROLLER, options, _REPLICAS, _pod(options), annotations)
    made = deployment(CONTROLLER, options, 1, _pod(options), annotations)
    made["spec"]["strategy"] = {"type": "Recreate"}
    return made


def _rights() -> list[Object]:
    look = ["get", "list", "watch"]
    return [
        rule(schema.GROUP, [schema.PLURAL, quotas.PLURAL, budgets.PLURAL], look),
        rule(
            schema.GROUP,
            [f"{schema.PLURAL}/status", f"{quotas.PLURAL}/status", f"{budgets.PLURAL}/status"],
            ["patch"],
        ),
        rule(schema.GROUP, [budgets.PLURAL], ["patch", "delete"], [DEFAULT_BUDGET]),
        rule(schema.GROUP, [budgets.PLURAL], ["create"]),  # has no name yet, so none can be given
        rule("apiextensions.k8s.io", ["customresourcedefinitions"], look, [crd_watch.NAME]),
        rule("", ["pods", "namespaces", "nodes", "resourcequotas"], look),
        rule("resource.k8s.io", ["resourceslices", "resourceclaims"], look),
        rule("resource.k8s.io", ["resourceclaimtemplates"], [*look, "create", "delete"]),
        rule("events.k8s.io", ["events"], ["create", "patch"]),
        rule(_ADMISSION, _CONFIGURATIONS, [*look, "patch"], [webhook_configurations.NAME]),
        rule(_ADMISSION, _CONFIGURATIONS, ["create"]),  # has no name yet, so none can be given
    ]


def _rights_at_home(options: Options) -> list[Object]:
    service = [rule("", ["services"], ["get"], [WEBHOOK])] if options.url is None else []
    return [
        *service,
        rule(schema.GROUP, [quotas.TALLY_PLURAL], ["get", "list", "watch", "create", "update", "delete"]),
        rule("coordination.k8s.io", ["leases"], ["get", "update"], [CONTROLLER]),
        rule("coordination.k8s.io", ["leases"], ["create"]),  # has no name yet, so none can be given
    ]


def _pod(options: Options) -> Object:
    container = {
        "name": "controller",
        "image": options.image,
        "args": ["controller", *configuration.ARGUMENTS],
        "ports": [{"name": "metrics", "containerPort": options.configuration.controller.port}],
        "startupProbe": probe("/healthz", "metrics", periodSeconds=1, failureThreshold=60),
        "livenessProbe": probe("/healthz", "metrics", periodSeconds=10, failureThreshold=3),
        "readinessProbe": probe("/readyz", "metrics", periodSeconds=5, failureThreshold=3),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": configuration.mounts(),
    }
    volumes = configuration.volumes()
    ledger = options.configuration.ledger
    if ledger.volume_claim is not None and ledger.address is not None:
        folder = str(PurePosixPath("/" + ledger.address.partition(":")[2].lstrip("/")).parent)
        container["volumeMounts"] = [*configuration.mounts(), {"name": "ledger", "mountPath": folder}]
        volumes = [*volumes, {"name": "ledger", "persistentVolumeClaim": {"claimName": ledger.volume_claim}}]
    if ledger.password_secret is not None:
        # By this name PostgreSQL's own library finds it.
        source = {"secretKeyRef": {"name": ledger.password_secret, "key": "password"}}
        container["env"] = [{"name": "PGPASSWORD", "valueFrom": source}]
    return confined_pod(CONTROLLER, container, volumes=volumes)
