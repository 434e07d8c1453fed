"""The webhook: its rights, its Deployment and Service, and the configurations that make the API server call it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from gpuslice.admission.registration import claim_policy, webhook_configurations
from gpuslice.installing import client_authority, configuration, network_policies
from gpuslice.installing.objects import Object, account, confined_pod, deployment, metadata, probe, rule, selector
from gpuslice.installing.options import CERTIFICATE_FOLDER, WEBHOOK
from gpuslice.pki.certificate_keeper import SECRET_NAME
from gpuslice.policies import crd_watch, schema
from gpuslice.quotas import schema as quotas

if TYPE_CHECKING:
    from gpuslice.installing.options import Options

_REPLICAS: Final = 2
_CERT_MANAGER: Final = "cert-manager.io/v1"
_AUTHORITY: Final = f"{WEBHOOK}-authority"


def objects(options: Options) -> list[Object]:
    return [
        *account(WEBHOOK, options, _rights(options), _rights_at_home(options)),
        # A webhook outside the cluster has the same rights, by a token of the same account, and the user runs it.
        *(_server(options) if options.url is None else ()),
        webhook_configurations.mutating(options.webhooks),
        webhook_configurations.validating(options.webhooks),
        *claim_policy.objects(options.namespace, options.settings.gpu_classes, options.webhooks.excluded_namespaces),
    ]


def _server(options: Options) -> list[Object]:
    server = options.configuration.webhook
    return [
        _service(options),
        *(_cert_manager(options) if options.cert_manager else ()),
        *client_authority.objects(options),
        network_policies.policy(WEBHOOK, options, metrics=server.metrics_port, reviews=server.port),
        deployment(WEBHOOK, options, _REPLICAS, _pod(options), configuration.pod_annotations(options)),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(WEBHOOK, options),
            "spec": {
                "minAvailable": 1,
                "selector": {"matchLabels": selector(WEBHOOK)},
                # A pod that is not ready serves no request: it must not keep a node from being drained.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        },
    ]


def _rights(options: Options) -> list[Object]:
    look = ["get", "list", "watch"]
    rights = [
        rule(schema.GROUP, [schema.PLURAL], look),
        rule("apiextensions.k8s.io", ["customresourcedefinitions"], look, [crd_watch.NAME]),
        rule("", ["namespaces", "nodes"], look),
        rule("resource.k8s.io", ["resourceslices"], look),
        # What claims are for that gpuslice did not make.
        rule("resource.k8s.io", ["resourceclaims", "resourceclaimtemplates"], ["get"]),
    ]
    if not options.cert_manager:
        kinds = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
        rights.append(rule("admissionregistration.k8s.io", kinds, [*look, "patch"], [webhook_configurations.NAME]))
    return rights


def _rights_at_home(options: Options) -> list[Object]:
    tallies = rule(schema.GROUP, [quotas.TALLY_PLURAL], ["get", "patch"])
    if options.cert_manager:
        return [tallies]
    return [
        tallies,
        rule("", ["secrets"], ["get", "list", "watch", "patch"], [SECRET_NAME]),
        rule("", ["secrets"], ["create"]),  # has no name yet, so none can be given
    ]


def _service(options: Options) -> Object:
    ports = [
        {"name": "https", "port": 443, "targetPort": "https"},
        {"name": "metrics", "port": options.configuration.webhook.metrics_port, "targetPort": "metrics"},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(WEBHOOK, options),
        "spec": {"selector": selector(WEBHOOK), "ports": ports},
    }


def _pod(options: Options) -> Object:
    server = options.configuration.webhook
    mounts, volumes = configuration.mounts(), configuration.volumes()
    if options.cert_manager:
        mounts.append({"name": "tls", "mountPath": CERTIFICATE_FOLDER, "readOnly": True})
        volumes.append({"name": "tls", "secret": {"secretName": WEBHOOK}})
    container = {
        "name": "webhook",
        "image": options.image,
        "args": ["webhook", *configuration.ARGUMENTS],
        "ports": [
            {"name": "https", "containerPort": server.port},
            {"name": "metrics", "containerPort": server.metrics_port},
        ],
        "startupProbe": probe("/healthz", "metrics", periodSeconds=1, failureThreshold=60),
        "livenessProbe": probe("/healthz", "metrics", periodSeconds=10, failureThreshold=3),
        "readinessProbe": probe("/readyz", "metrics", periodSeconds=2, failureThreshold=1),
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [*mounts, *client_authority.mounts()],
    }
    volumes += client_authority.volumes()
    # The pod may take a little longer than it drains to answer what it has.
    grace = max(1, math.ceil(2 * server.drain_seconds))
    return confined_pod(WEBHOOK, container, terminationGracePeriodSeconds=grace, volumes=volumes)


def _cert_manager(options: Options) -> list[Object]:
    """An authority that lasts, so that the API servers' trust need not change with every certificate."""
    key = {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"}
    authority = {
        "isCA": True,
        "commonName": _AUTHORITY,
        "secretName": _AUTHORITY,
        "duration": "87600h",
        "privateKey": key | {"rotationPolicy": "Never"},
        "issuerRef": {"kind": "Issuer", "name": f"{WEBHOOK}-self-signed"},
    }
    serving = {
        "secretName": WEBHOOK,
        "dnsNames": list(options.service.dns_names),
        "duration": "2160h",
        "privateKey": key,
        "issuerRef": {"kind": "Issuer", "name": WEBHOOK},
    }
    return [
        _of_cert_manager("Issuer", f"{WEBHOOK}-self-signed", options, {"selfSigned": {}}),
        _of_cert_manager("Certificate", _AUTHORITY, options, authority),
        _of_cert_manager("Issuer", WEBHOOK, options, {"ca": {"secretName": _AUTHORITY}}),
        _of_cert_manager("Certificate", WEBHOOK, options, serving),
    ]


def _of_cert_manager(kind: str, name: str, options: Options, spec: Object) -> Object:
    return {"apiVersion": _CERT_MANAGER, "kind": kind, "metadata": metadata(name, options), "spec": spec}
