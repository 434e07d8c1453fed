"""The webhook configurations: which requests the API server sends, where, and what it does without an answer.

Five webhooks, and the reasons for what each does when it is down:

- Where no policy limits anything, pods are rewritten by a webhook that may be missing (`Ignore`). A pod with a
  well-formed request then starts as it was written: with a whole GPU, or waiting for a resource that no node has. No
  deployment stands still because of us.
- Where a policy limits something, a webhook that must answer (`Fail`) does the same: else a tenant that keeps the
  webhook from answering has no limit. `unreviewed` says which namespaces these are; the controller keeps the
  configuration in step with them. The two divide the namespaces, so that each pod is sent once, and both have
  conditions by which a pod that asks for no GPU depends on neither.
- Pods with malformed requests are refused by a webhook that must answer (`Fail`), and its conditions let no other pod
  depend on it: CEL sees that a request is malformed, so pods that ask for no GPU and well-formed ones are never sent.
  While the first webhook answers, it has refused such pods already; what is left are those of namespaces that a policy
  leaves alone. Pods that the first webhook has labelled are not looked at again, which saves the API server a third of
  a millisecond for each. A user who writes the label himself gains nothing: the first webhook does not read it, and
  while that one is down, his malformed request gets him no more than a well-formed one would.
- In namespaces with a quota, pods that hold anything of a GPU are counted by a webhook that must answer (`Fail`), in
  the validating phase, where they have their final shape and their UID. It is asked about every such pod, whatever
  labels and annotations it has. The controller keeps it in step with the quotas, as `under_quotas`.
- Policies are checked by a webhook that must answer (`Fail`). A policy is a guard that its author believes in: better
  refused for a minute than accepted and left out. No pod depends on it, and neither do deletion or an unchanged spec.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gpuslice.admission import pod_annotations
from gpuslice.admission.registration import excluded_namespaces, match_conditions
from gpuslice.admission.registration.fail_closed_namespaces import MOST_NAMES, NO_NAMESPACE, RefusingNamespaces
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings
from gpuslice.policies import schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Of both configurations.
NAME: Final = "gpuslice"
MUTATE: Final = "/mutate"
VALIDATE: Final = "/validate"
VALIDATE_POLICY: Final = "/validate-policy"
VALIDATE_QUOTA: Final = "/validate-quota"

#: The two that rewrite pods. The API server tells a user only the name of the webhook that did not answer.
MAY_BE_MISSING: Final = "pods.mutate.gpuslice.io"
MUST_ANSWER: Final = "pods.under-gpu-limits.gpuslice.io"
UNDER_QUOTAS: Final = "pods.under-gpu-quotas.gpuslice.io"

#: Pods wait for us to be created, so this is short; an answer takes a millisecond.
TIMEOUT_SECONDS: Final = 3
#: A reservation waits for other writers of the same tally; Kubernetes gives its own quotas as long.
QUOTA_TIMEOUT_SECONDS: Final = 10
LABELS: Final = {"app.kubernetes.io/name": "gpuslice", "app.kubernetes.io/part-of": "gpuslice"}
_INJECT: Final = "cert-manager.io/inject-ca-from"

EXCLUDED_NAMESPACES: Final = excluded_namespaces.by_default("gpuslice-system")

#: The requests about pods: only a new pod can be rewritten.
PODS: Final = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}


#: Containers that are added to a pod later (`kubectl debug`) may not have what they could not have from the beginning.
_ADDED: Final = PODS | {"operations": ["UPDATE"], "resources": ["pods/ephemeralcontainers"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The webhook behind a Service of the cluster."""

    namespace: str
    name: str
    port: int = 443

    def client_config(self, path: str) -> dict[str, Any]:
        return {"service": {"namespace": self.namespace, "name": self.name, "port": self.port, "path": path}}

    @property
    def dns_names(self) -> tuple[str, ...]:
        """The names by which the API server, and any pod of the cluster, calls it."""
        short = f"{self.name}.{self.namespace}"
        return (f"{short}.svc", f"{short}.svc.cluster.local", short)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The webhook outside of the cluster: on a developer's machine, or beside the API server."""

    url: str

    def client_config(self, path: str) -> dict[str, Any]:
        return {"url": self.url.rstrip("/") + path}


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhooks:
    """What the configurations are made of."""

    target: Service | Address
    settings: Settings = field(default_factory=lambda: DEFAULT_SETTINGS)
    #: Where pods are left alone: the cluster must be able to start, and so must we.
    excluded_namespaces: tuple[str, ...] = EXCLUDED_NAMESPACES
    #: Whether the API server refuses every pod that asks for a GPU while no webhook answers, limited or not.
    refuse_unreviewed: bool = False
    #: `namespace/name` of cert-manager's Certificate. Without it the bundle of authorities is ours to keep.
    certificate: str | None = None


def mutating(webhooks: Webhooks, refusing: RefusingNamespaces = NO_NAMESPACE) -> dict[str, Any]:
    """The MutatingWebhookConfiguration. A webhook that would select nothing is left out."""
    if webhooks.refuse_unreviewed:
        refusing = RefusingNamespaces(others=True)
    names = refusing.names.difference(webhooks.excluded_namespaces)
    outside, inside = excluding({*webhooks.excluded_namespaces, *names}), _only(names)
    ignoring, failing = (inside, outside) if refusing.others else (outside, inside)
    members = [
        _rewriting(webhooks, name, failure_policy, selector)
        for name, failure_policy, selector in (
            (MAY_BE_MISSING, "Ignore", ignoring),
            (MUST_ANSWER, "Fail", failing),
        )
        if selector is not None
    ]
    return _configuration(webhooks, "MutatingWebhookConfiguration", members)


def _rewriting(webhooks: Webhooks, name: str, failure_policy: str, selector: dict[str, Any]) -> dict[str, Any]:
    return _webhook(webhooks, name, MUTATE, failure_policy, PODS, _ADDED) | {
        # The controller makes claim templates, of pods that are stored.
        "sideEffects": "None",
        # Another webhook may add a container after us.
        "reinvocationPolicy": "IfNeeded",
        "namespaceSelector": selector,
        "matchConditions": [{"name": "may-ask-for-a-gpu", "expression": match_conditions.may_ask(webhooks.settings)}],
    }


def validating(webhooks: Webhooks, under_quotas: Collection[str] = ()) -> dict[str, Any]:
    """The ValidatingWebhookConfiguration; `under_quotas` are the namespaces with a quota."""
    requests = _webhook(webhooks, "pods.validate.gpuslice.io", VALIDATE, "Fail", PODS) | {
        "sideEffects": "None",
        "namespaceSelector": excluding(webhooks.excluded_namespaces),
        "objectSelector": {"matchExpressions": [{"key": pod_annotations.SLICED, "operator": "DoesNotExist"}]},
        "matchConditions": [
            {"name": "malformed-gpu-request", "expression": match_conditions.malformed(webhooks.settings)}
        ],
    }
    written = {
        "apiGroups": [schema.GROUP],
        "apiVersions": [schema.VERSION],
        "operations": ["CREATE", "UPDATE"],
        "resources": [schema.PLURAL],
    }
    policies = _webhook(webhooks, "policies.validate.gpuslice.io", VALIDATE_POLICY, "Fail", written) | {
        "sideEffects": "None",
        "matchConditions": [
            {"name": "spec-changes", "expression": 'request.operation == "CREATE" || object.spec != oldObject.spec'}
        ],
    }
    quotas = _counting(webhooks, under_quotas)
    return _configuration(webhooks, "ValidatingWebhookConfiguration", [requests, *quotas, policies])


def _counting(webhooks: Webhooks, under_quotas: Collection[str]) -> list[dict[str, Any]]:
    """Left out without a quota. Above so many names the webhook is asked everywhere, and finds out itself."""
    names = frozenset(under_quotas).difference(webhooks.excluded_namespaces)
    selector = _only(names) if len(names) <= MOST_NAMES else excluding(webhooks.excluded_namespaces)
    if selector is None:
        return []
    rule = PODS | {"operations": ["CREATE", "UPDATE"]}
    return [
        _webhook(webhooks, UNDER_QUOTAS, VALIDATE_QUOTA, "Fail", rule)
        | {
            # A reservation in the namespace's tally, but for a dry run.
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": QUOTA_TIMEOUT_SECONDS,
            "namespaceSelector": selector,
            "matchConditions": [{"name": "may-be-charged", "expression": match_conditions.may_be_charged()}],
        }
    ]


def excluding(namespaces: Iterable[str]) -> dict[str, Any]:
    """A selector of all namespaces but these."""
    return _by_name("NotIn", namespaces)


def _only(namespaces: Iterable[str]) -> dict[str, Any] | None:
    """A selector of these. There is no such selector for none."""
    return _by_name("In", namespaces) if namespaces else None


def _by_name(operator: str, namespaces: Iterable[str]) -> dict[str, Any]:
    # The API server itself sets this label on every namespace, and no user can change it.
    wanted = {"key": "kubernetes.io/metadata.name", "operator": operator, "values": sorted(namespaces)}
    return {"matchExpressions": [wanted]}


def _configuration(webhooks: Webhooks, kind: str, members: list[dict[str, Any]]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": NAME, "labels": dict(LABELS)}
    if webhooks.certificate is not None:
        metadata["annotations"] = {_INJECT: webhooks.certificate}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "webhooks": members,
    }


def _webhook(
    webhooks: Webhooks, name: str, path: str, failure_policy: str, *rules: dict[str, list[str]]
) -> dict[str, Any]:
    """Every field that the API server would fill in is there, so that a comparison finds no difference."""
    return {
        "name": name,
        "clientConfig": webhooks.target.client_config(path),
        "admissionReviewVersions": ["v1"],
        "failurePolicy": failure_policy,
        "matchPolicy": "Equivalent",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "objectSelector": {},
        "namespaceSelector": {},
        "rules": [{**rule, "scope": "*"} for rule in rules],
    }
