"""The custom resource definitions, made from the structs that read the objects: the API server and we agree on every
field.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gpuslice.policies import schema

_QUANTITY: Final = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "pattern": r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([kMGTPE]|[KMGTPE]i|[eE][+]?[0-9]{1,2})?$",
    "x-kubernetes-int-or-string": True,
}
#: Rules that no type can say, by struct.
_VALIDATIONS: Final = {
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


def slice_policies() -> dict[str, Any]:
    """The CustomResourceDefinition of SlicePolicy."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{schema.PLURAL}.{schema.GROUP}"},
        "spec": {
            "group": schema.GROUP,
            "scope": "Cluster",
            "names": {
                "kind": schema.KIND,
                "listKind": f"{schema.KIND}List",
                "plural": schema.PLURAL,
                "singular": "slicepolicy",
                "shortNames": ["slp"],
                "categories": ["gpuslice"],
            },
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    (reference,), components = msgspec.json.schema_components([schema.PolicySpec], ref_template="{name}")
    spec = _structural(reference, components)
    return {
        "name": schema.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            _column("Priority", "integer", ".spec.priority"),
            _column("Rules", "string", ".spec.rules[*].name"),
            _column("Accepted", "string", '.status.conditions[?(@.type=="Accepted")].status'),
            _column("Held", "string", '.status.conditions[?(@.type=="HeldWithoutWebhook")].status'),
            _column("Age", "date", ".metadata.creationTimestamp"),
        ],
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "description": "Says about the GPUs of the pods that its rules match: how they may ask, what they get, "
                "and how it is given.",
                "required": ["spec"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "kind": {"type": "string"},
                    "metadata": {"type": "object"},
                    "spec": spec,
                    "status": _status(),
                },
            }
        },
    }


def _column(name: str, kind: str, path: str) -> dict[str, str]:
    return {"name": name, "type": kind, "jsonPath": path}


def _status() -> dict[str, Any]:
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
    conditions = {
        "type": "array",
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    return {"type": "object", "properties": {"conditions": conditions}}


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
