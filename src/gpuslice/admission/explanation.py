"""Why admission decided as it did: what a pod asked, which rule decided and why not another, what it got, what
changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.admission import pod_annotations
from gpuslice.admission.decision import NO_DIALECT, NO_GPU, Outcome
from gpuslice.dialects import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpuslice.admission.decision import Decision
    from gpuslice.admission.granting import Grant
    from gpuslice.policies.rule_set import Verdict


def explain(decision: Decision, verdicts: Iterable[Verdict], pod: Mapping[str, Any]) -> dict[str, Any]:
    """Every step of a decision about the pod, for programs; `as_text` shows it to people."""
    return {
        "outcome": str(decision.outcome),
        "reason": decision.denial.message if decision.denial else _reason(decision, pod),
        "asked": [
            {
                "container": reading.place.name,
                "dialect": reading.dialect,
                "fields": list(reading.signs),
                "requests": [_plain(request) for request in reading.asked.requests],
            }
            for reading in decision.readings
        ],
        "policy": decision.rule.label,
        "rules": [_rule(verdict, decision) for verdict in verdicts],
        "given": [_given(given) for given in decision.grants],
        "notes": _how_to_ask(decision, pod) + _other_nodes(decision, (pod.get("spec") or {}).get("nodeSelector") or {}),
        "patch": list(decision.operations),
        "templates": [template.name for template in decision.templates],
        "warnings": list(decision.warnings),
    }


def as_text(title: str, explained: Mapping[str, Any]) -> str:
    """The explanation as lines."""
    return "\n".join(_lines(title, explained)) + "\n"


def _lines(title: str, explained: Mapping[str, Any]) -> Iterator[str]:
    yield f"{title}: {explained['outcome']}" + (f", {explained['reason']}" if explained["reason"] else "")
    for asked in explained["asked"]:
        yield f"  container {asked['container']} asks in {asked['dialect']}"
        yield from (f"    by {field}" for field in asked["fields"])
    yield f"  policy: {explained['policy']}"
    yield from (f"    {rule['rule']}: {rule['verdict']}" for rule in explained["rules"])
    for given in explained["given"]:
        yield f"  container {given['container']} gets {given['slice']} by the backend {given['backend']}"
        yield from (f"    {note}" for note in given["notes"])
    yield from (f"  {note}" for note in explained["notes"])
    if explained["patch"]:
        yield "  patch:"
    for operation in explained["patch"]:
        value = f" = {msgspec.json.encode(operation['value']).decode()}" if "value" in operation else ""
        yield f"    {operation['op']} {operation['path']}{value}"
    yield from (f"  needs the ResourceClaimTemplate {name}" for name in explained["templates"])
    yield from (f"  warning: {warning}" for warning in explained["warnings"])


def _rule(verdict: Verdict, decision: Decision) -> dict[str, Any]:
    rule = verdict.rule
    if rule is decision.rule:
        text = "decides"
    elif verdict.matched:
        text = f"matches, but {decision.rule.label} comes first"
    else:
        text = f"does not match: {verdict.reason}"
    return {"rule": rule.label, "priority": rule.priority, "matched": verdict.matched, "verdict": text}


def _reason(decision: Decision, pod: Mapping[str, Any]) -> str:
    """A pod whose claims are written asks for nothing any more. Its annotations tell that from a pod without a GPU."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return (
        "it has its slice already" if decision is NO_GPU and pod_annotations.DIALECT in annotations else decision.reason
    )


def _how_to_ask(decision: Decision, pod: Mapping[str, Any]) -> list[str]:
    """For the author of a pod that was to have a slice, and says nothing that is read."""
    spec = pod.get("spec") or {}
    resources = list(_extended_resources(spec))
    if decision is NO_GPU:
        return [
            f"no container and no annotation asks in a dialect: {', '.join(registry.NAMES)}",
            *(f"{field}: no dialect reads it; another device plugin must offer it" for field in resources),
        ]
    if decision.reason != NO_DIALECT:
        return []
    claims = (
        ["spec.resourceClaims: claims that the author wrote stay as they are"] if spec.get("resourceClaims") else []
    )
    whole = ['whole GPUs become slices by castops.io/optimize: "true", or by a policy with participation: OptIn']
    return claims + (whole if resources or not claims else [])


def _extended_resources(spec: Mapping[str, Any]) -> Iterator[str]:
    """Fields that ask for what a device plugin offers. Kubernetes' own resources have no domain."""
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            resources = container.get("resources") or {}
            limits = resources.get("limits") or {}
            for part, named in (("limits", limits), ("requests", resources.get("requests") or {})):
                for name in named:
                    if "/" in name and (part == "limits" or name not in limits):
                        yield f"spec.{kind}[{index}].resources.{part}[{name}]"


def _other_nodes(decision: Decision, selected: Mapping[str, str]) -> list[str]:
    """A policy's node selector fills gaps: where the pod says something else, it may end on other nodes."""
    if decision.outcome is not Outcome.REWRITTEN:
        return []
    return [
        f"spec.nodeSelector[{key}]: the pod's {selected[key]!r} stays, although the policy says {text!r}"
        for key, text in decision.rule.node_selector.items()
        if selected.get(key, text) != text
    ]


def _given(given: Grant) -> dict[str, Any]:
    return {
        "container": given.reading.place.name,
        "slice": given.slice.describe(),
        "backend": str(given.backend),
        "notes": list(given.notes),
    }


def _plain(request: object) -> dict[str, Any]:
    """What the request says, without what it leaves open."""
    fields = msgspec.to_builtins(request, enc_hook=str)
    return {name: value for name, value in fields.items() if value not in (None, False)}
