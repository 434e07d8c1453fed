"""The custom resource definitions, made from the structs that read the objects: the API server and we agree on every
field.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gpuslice.accounting.budgets import schema as budgets
from gpuslice.policies import schema
from gpuslice.quotas import schema as quotas

_QUANTITY: Final = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([kMGTPE]|[KMGTPE]i|[eE][+]?[0-9]{1,2})?$",
    "x-kubernetes-int-or-string": True,
}
#: Rules that no type can say, by struct.
_VALIDATIONS: Final = {
    "AmountSpec": [
        {
            "rule": "[has(self.gpuMinutes), has(self.gpuHours), has(self.money)].filter(given, given).size() == 1",
            "message": "give one of gpuMinutes, gpuHours and money",
        },
        {
            "rule": "!has(self.money) || self.money.matches('[1-9]')",
            "message": "a budget of nothing is no budget; forbid GPUs by a GpuQuota instead",
        },
    ],
    "WindowSpec": [
        {
            "rule": "[has(self.calendar), has(self.rolling), has(self.halfLife)].filter(given, given).size() == 1",
            "message": "give one of calendar, rolling and halfLife",
        },
        {
            "rule": "(!has(self.rolling) || self.rolling.matches('[1-9]')) && "
            "(!has(self.halfLife) || self.halfLife.matches('[1-9]'))",
            "message": "a window of 0 would forget at once what is used; write at least 1m",
        },
    ],
    "LadderSpec": [
        {
            "rule": f"!has(self.{low}) || !has(self.{high}) || self.{low}.at <= self.{high}.at",
            "message": f"{high}.at is below {low}.at; steps go up",
        }
        for low, high in (("lower", "gate"), ("gate", "evict"), ("lower", "evict"))
    ],
    "BudgetSpec": [
        {
            "rule": "has(self.window.calendar) || !has(self.carryOver) && !has(self.borrow)",
            "message": "carryOver and borrow: only a calendar's windows follow each other; set window.calendar",
        }
    ],
    "HardSpec": [
        {
            "rule": "has(self.memory) || has(self.cores) || has(self.devices)",
            "message": "hard limits nothing; write memory, cores or devices",
        }
    ],
    "MatchExpression": [
        {
            "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "message": "In and NotIn need values; Exists and DoesNotExist have none",
        }
    ],
    "TolerationSpec": [
        {
            "rule": "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
            "message": "Exists has no value",
        },
        {
            "rule": "has(self.key) || has(self.operator) && self.operator == 'Exists'",
            "message": "only the operator Exists can do without a key",
        },
        {
            "rule": "!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
            "message": "tolerationSeconds has a meaning only with the effect NoExecute",
        },
    ],
    "RuleSpec": [
        {
            "rule": "!has(self.targetResource) || !has(self.backend) || self.backend == 'extended'",
            "message": "targetResource counts slots, which only the backend extended has",
        },
        {
            "rule": "!has(self.dialects) || size(self.dialects) > 0",
            "message": "dialects allows none; write participation: OptOut to leave pods alone",
        },
        {
            "rule": "!has(self.defaults) || !has(self.defaults.cores) || !has(self.maximum) || "
            "!has(self.maximum.cores) || self.defaults.cores <= self.maximum.cores",
            "message": "defaults.cores is above maximum.cores",
        },
    ],
}
#: Lists whose items the API server tells apart by a field.
_MAP_KEYS: Final = {"rules": ["name"]}
_NUMBER_LIMIT: Final = 64  # entries of a map, so that the cost of the rules above has a bound


def all_definitions() -> list[dict[str, Any]]:
    return [slice_policies(), gpu_quotas(), quota_tallies(), gpu_budgets()]


def slice_policies() -> dict[str, Any]:
    """The CustomResourceDefinition of SlicePolicy."""
    columns = [
        _column("Priority", "integer", ".spec.priority"),
        _column("Rules", "string", ".spec.rules[*].name"),
        _column("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].status'),
        _column("Held", "string", '.status.conditions[?(@.type=="HeldWithoutWebhook")].status'),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    description = (
        "Says about the GPUs of the pods that its rules match: how they may ask, what they get, and how it is given."
    )
    status = {"type": "object", "properties": {"conditions": _conditions()}}
    version = _version(description, _generated(schema.PolicySpec), status, columns)
    return _definition(schema.KIND, schema.PLURAL, "Cluster", "slp", version)


def gpu_quotas() -> dict[str, Any]:
    """The CustomResourceDefinition of GpuQuota."""
    columns = [
        *(_column(name.title(), "string", f".status.usedOfHard.{name}") for name in ("memory", "cores", "devices")),
        _column("Held", "string", '.status.conditions[?(@.type=="Held")].status'),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    description = "Says how much of GPUs the pods of its namespace may hold together, in whichever dialect they ask."
    status = _generated(quotas.GpuQuotaStatus)
    status["properties"]["conditions"] = _conditions()
    version = _version(description, _generated(quotas.GpuQuotaSpec), status, columns)
    return _definition(quotas.KIND, quotas.PLURAL, "Namespaced", "gq", version)


def gpu_budgets() -> dict[str, Any]:
    """The CustomResourceDefinition of GPUBudget."""
    columns = [
        _column("Most used", "string", ".status.summary"),
        _column("Over", "integer", ".status.over"),
        _column("Namespaces", "integer", ".status.counted"),
        _column("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].status'),
        _column("Metered", "string", '.status.conditions[?(@.type=="Metered")].status'),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    description = (
        "Says how much GPU time, or money for it, each of its namespaces may use in a window, and what follows."
    )
    status = _generated(budgets.BudgetStatus)
    status["properties"]["conditions"] = _conditions()
    version = _version(description, _generated(budgets.BudgetSpec), status, columns)
    return _definition(budgets.KIND, budgets.PLURAL, "Cluster", "gb", version)


def quota_tallies() -> dict[str, Any]:
    """The CustomResourceDefinition of QuotaTally, which gpuslice alone writes and reads."""
    description = (
        "Counts for the quotas of the namespace that it is named after. Only gpuslice writes it, and reads it."
    )
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return _definition(quotas.TALLY_KIND, quotas.TALLY_PLURAL, "Namespaced", None, _version(description, spec))


def _definition(kind: str, plural: str, scope: str, short: str | None, version: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{schema.GROUP}"},
        "spec": {
            "group": schema.GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                # Those for people.
                **({"shortNames": [short], "categories": ["gpuslice"]} if short is not None else {}),
            },
            "versions": [version],
        },
    }


def _generated(struct: type[msgspec.Struct]) -> dict[str, Any]:
    (reference,), components = msgspec.json.schema_components([struct], ref_template="{name}")
    return _structural(reference, components)


def _version(
    description: str,
    spec: dict[str, Any],
    status: dict[str, Any] | None = None,
    columns: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    return {
        "name": schema.VERSION,
        "served": True,
        "storage": True,
        **({"subresources": {"status": {}}} if status else {}),
        **({"additionalPrinterColumns": columns} if columns else {}),
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": description,
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": spec,
                    **({"status": status} if status else {}),
                },
            }
        },
    }


def _column(name: str, kind: str, path: str) -> dict[str, str]:
    return {"name": name, "type": kind, "jsonPath": path}


def _conditions() -> dict[str, Any]:
    texts = {name: {"type": "string"} for name in ("type", "status", "reason", "message")}
    condition = {
        "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": texts
        | {
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    }
    return {
        "type": "array",
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }


def _structural(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """JSON schema as Kubernetes takes it: no references, no null, no defaults but by the server's leave."""
    schema = dict(schema)
    description = schema.pop("description", None)
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if option.get("type") != "null"]
        limits = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        made = dict(_QUANTITY) if len(options) > 1 else _structural(options[0] | limits, components)
    elif "$ref" in schema:
        name = schema["$ref"]
        made = _structural(components[name], components)
        made.pop("description", None)
        if name in _VALIDATIONS:
            made["x-kubernetes-validations"] = _VALIDATIONS[name]
    else:
        made = _plain(schema, components)
    return ({"description": description} if description else {}) | made


def _plain(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type", "string")
    made: dict[str, Any] = {"type": kind}
    if kind == "object" and "properties" in schema:
        if schema.get("required"):
            made["required"] = sorted(schema["required"])
        made["properties"] = {name: _structural(field, components) for name, field in schema["properties"].items()}
        for name, keys in _MAP_KEYS.items():
            if name in made["properties"]:
                made["properties"][name] |= {
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": keys,
                }
    elif kind == "object":
        made["additionalProperties"] = _structural(schema["additionalProperties"], components)
        made["maxProperties"] = _NUMBER_LIMIT
    elif kind == "array":
        made["items"] = _structural(schema["items"], components)
    return made | {
        key: value
        for key, value in schema.items()
        if key in ("enum", "pattern", "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum")
    }
