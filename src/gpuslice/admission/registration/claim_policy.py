"""Where a policy has a maximum, or a GpuQuota counts, tenants make no claims of GPUs by themselves: the API server
refuses them.

A pod's review counts what its claims ask for. But a claim, or a template that claims are made of, can be deleted and
made anew under its name between the review and the pod's start. So that nothing worse can take its place, claims and
templates of the GPUs' device classes are refused when they are made, in every namespace that has a GpuQuota or that a
rule with a maximum may be for, by ValidatingAdmissionPolicies that read these themselves: they hold while nothing of
ours runs.

Exempt are those who make them for pods (gpuslice, and Kubernetes' own parts) and users who may write SlicePolicies or
GpuQuotas. While these are not served there is no maximum and no quota, and nothing is refused (`Ignore`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuslice.admission.registration.webhook_configurations import LABELS, excluding
from gpuslice.dialects.cel import all_of, any_of, list_of, quote
from gpuslice.policies import schema
from gpuslice.quotas import schema as quota_schema

if TYPE_CHECKING:
    from collections.abc import Collection

NAME: Final = "gpuslice-claims"
QUOTA_NAME: Final = "gpuslice-quota-claims"
Object = dict[str, Any]

_REGISTRATION: Final = "admissionregistration.k8s.io/v1"
_USER: Final = "request.userInfo.username"
#: They make claims of templates, and of resources that are names of device classes.
_KUBERNETES: Final = ("system:kube-controller-manager", "system:kube-scheduler")

_SPEC: Final = "(has(object.spec.spec) ? object.spec.spec : object.spec)"


def objects(namespace: str, classes: Collection[str], excluded: Collection[str]) -> list[Object]:
    """The policies and their bindings. `namespace` is where gpuslice runs."""
    policies = f"resource({quote(schema.PLURAL)})"
    quotas = f"resource({quote(quota_schema.PLURAL)}).namespace(request.namespace)"
    return [
        *_guard(NAME, schema.KIND, _asked_by_tenants(namespace, classes, policies), _UNLIMITED, excluded),
        *_guard(QUOTA_NAME, quota_schema.KIND, _asked_by_tenants(namespace, classes, quotas), _UNCOUNTED, excluded),
    ]


def _guard(
    name: str, kind: str, conditions: list[Object], validation: Object, excluded: Collection[str]
) -> tuple[Object, Object]:
    """Refuses claims by each object of this kind that is for their namespace."""
    metadata = {"name": name, "labels": dict(LABELS)}
    policy = {
        "apiVersion": _REGISTRATION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Ignore",
            "paramKind": {"apiVersion": schema.API_VERSION, "kind": kind},
            # With every field that the API server would fill in, so that installing once more changes nothing.
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "resourceRules": [
                    {
                        "apiGroups": ["resource.k8s.io"],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],  # their specs never change
                        "resources": ["resourceclaims", "resourceclaimtemplates"],
                        "scope": "*",
                    }
                ],
            },
            "matchConditions": conditions,
            "validations": [validation],
        },
    }
    binding = {
        "apiVersion": _REGISTRATION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"},
            "matchResources": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": excluding(excluded),
                "objectSelector": {},
            },
        },
    }
    return policy, binding


def _asked_by_tenants(namespace: str, classes: Collection[str], written_by_others: str) -> list[Object]:
    return [
        {"name": "asks-for-gpus", "expression": _asks_for(classes)},
        {"name": "is-made-by-a-tenant", "expression": _is_tenant(namespace, written_by_others)},
    ]


def _asks_for(classes: Collection[str]) -> str:
    names = list_of(sorted(classes))
    request = any_of(
        [
            f"has(r.exactly) && r.exactly.deviceClassName in {names}",
            f"has(r.firstAvailable) && r.firstAvailable.exists(a, a.deviceClassName in {names})",
        ]
    )
    return f"has({_SPEC}.devices) && has({_SPEC}.devices.requests) && {_SPEC}.devices.requests.exists(r, {request})"


def _is_tenant(namespace: str, written_by_others: str) -> str:
    prefixes = (f"system:serviceaccount:{each}:" for each in (namespace, "kube-system"))
    exempt = [
        f"{_USER} in {list_of(_KUBERNETES)}",
        *(f"{_USER}.startsWith({quote(prefix)})" for prefix in prefixes),
        f"authorizer.group({quote(schema.GROUP)}).{written_by_others}.check('create').allowed()",
    ]
    return f"!{any_of(exempt)}"


def _limits_here() -> str:
    """Whether a rule `r` has a maximum of what claims give, and may be for a pod of the namespace."""
    maximum = any_of(f"has(r.maximum.{each})" for each in ("memory", "cores", "devices"))
    labels = "namespaceObject.metadata.labels"
    wanted = "r.match.namespaceSelector.matchLabels"
    labelled = f"{wanted}.all(k, has({labels}) && k in {labels} && {labels}[k] == {wanted}[k])"
    named = "!has(r.match.namespaces) || size(r.match.namespaces) == 0 || request.namespace in r.match.namespaces"
    selected = f"!has(r.match.namespaceSelector) || !has({wanted}) || {labelled}"
    return all_of(
        [
            f"has(r.maximum) && {maximum}",
            '(!has(r.participation) || r.participation != "OptOut")',
            "!(has(r.warnOnly) && r.warnOnly)",
            f"(!has(r.match) || (({named}) && ({selected})))",
        ]
    )


_UNLIMITED: Final[Object] = {
    "expression": f"!params.spec.rules.exists(r, {_limits_here()})",
    "message": "gpuslice: this asks for GPUs by a device class, and a SlicePolicy limits what pods of this namespace "
    "may have; ask for a GPU in the pod, in a dialect",
}
#: The quotas that are looked at are those of the claim's namespace.
_UNCOUNTED: Final[Object] = {
    "expression": "false",
    "message": "gpuslice: this asks for GPUs by a device class, and a GpuQuota counts what pods of this namespace "
    "have; ask for a GPU in the pod, in a dialect",
}
