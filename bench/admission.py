"""Measures the pure core of admission on a review as an API server sends it, and writes `bench/results/admission.json`.

The baseline is `json.loads` of the same bytes: what any webhook in Python pays before it has looked at anything. Run by
`python -m bench.admission`.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from gpuslice.admission.context import Context
from gpuslice.admission.policy_parsing import load_policies
from gpuslice.admission.review import review

if TYPE_CHECKING:
    from collections.abc import Callable

_RESULTS: Final = Path(__file__).resolve().parent / "results" / "admission.json"
_REVIEW_BYTES: Final = 5700
_ROUNDS: Final = 30
_CALLS: Final = 200
_POLICIES: Final = 1000
_BASELINE: Final = "json.loads of the review"


@dataclass(frozen=True)
class Result:
    """Medians over rounds that take turns, so that a busy machine slows all of them alike."""

    name: str
    microseconds: float
    reviews_per_second: float
    #: To the baseline.
    ratio: float


def body(limits: dict[str, str], annotations: dict[str, str]) -> bytes:
    """A pod of a Deployment as the API server sends it, padded with what real ones have: an environment."""
    resources = {"limits": {"cpu": "4", "memory": "16Gi"} | limits, "requests": {"cpu": "2", "memory": "16Gi"} | limits}
    token = {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access", "readOnly": True}
    container = {
        "name": "main",
        "image": "registry.example/team/training:2026-11-01",
        "command": ["python", "-m", "train"],
        "env": [],
        "resources": resources,
        "volumeMounts": [token],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    metadata = {
        "generateName": "training-6d4b75cb6d-",
        "namespace": "research",
        "labels": {"app": "training", "pod-template-hash": "6d4b75cb6d", "team": "vision"},
        "annotations": annotations
        | {"example.com/checksum": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15"},
        "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:spec": {}}}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], "serviceAccountName": "default", "schedulerName": "default-scheduler"},
    }
    request: dict[str, Any] = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": "research",
        "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller", "groups": ["system:nodes"]},
        "object": pod,
        "dryRun": False,
    }
    document = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    environment: list[dict[str, str]] = container["env"]  # type: ignore[assignment]  # the list above
    while len(json.dumps(document)) < _REVIEW_BYTES:
        environment.append({"name": f"SETTING_{len(environment)}", "value": "a value as applications have them"})
    return json.dumps(document, separators=(",", ":")).encode()


def policies(count: int) -> Context:
    """Rules for other namespaces, other teams and other accounts."""
    matches: list[Callable[[int], dict[str, Any]]] = [
        lambda index: {"namespaces": [f"other-{index}"]},
        lambda index: {"namespaceSelector": {"matchLabels": {"team": f"other-{index}"}}},
        lambda index: {"podSelector": {"matchLabels": {"app": f"other-{index}"}}, "expression": "object.kind == 'Pod'"},
        lambda index: {"serviceAccounts": [f"other-{index}"]},
    ]
    documents = [
        {
            "apiVersion": "gpuslice.io/v1alpha1",
            "kind": "SlicePolicy",
            "metadata": {"name": f"policy-{index}"},
            "spec": {"rules": [{"name": "rule", "match": matches[index % len(matches)](index), "warnOnly": True}]},
        }
        for index in range(count)
    ]
    loaded = load_policies(documents)
    assert not loaded.errors, loaded.errors
    return Context(policies=loaded.policies, namespace_labels=lambda _name: {"team": "vision", "tier": "research"})


def measure() -> list[Result]:
    claim = body({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}, {})
    slots = body({"nvidia.com/gpu": "1"}, {"castops.io/optimize": "true"})
    nothing = body({}, {})
    one, many = policies(1), policies(_POLICIES)
    work: dict[str, Callable[[], object]] = {
        _BASELINE: lambda: json.loads(claim),
        "no GPU, 1 policy": lambda: review(nothing, one),
        "castslice, 1 policy": lambda: review(slots, one),
        "hami, 1 policy": lambda: review(claim, one),
        f"hami, {_POLICIES:,} policies": lambda: review(claim, many),
    }
    rounds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(_ROUNDS):
        for name, call in work.items():
            start = time.process_time()
            for _ in range(_CALLS):
                call()
            rounds[name].append((time.process_time() - start) / _CALLS)
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    return [Result(name, seconds * 1e6, 1 / seconds, seconds / medians[_BASELINE]) for name, seconds in medians.items()]


def main() -> int:
    results = measure()
    table = Table("what", title=f"Admission's core, a review of {_REVIEW_BYTES:,} bytes", title_justify="left")
    for heading in ("µs", "per CPU second", "ratio"):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(
            result.name, f"{result.microseconds:.1f}", f"{result.reviews_per_second:,.0f}", f"{result.ratio:.2f}"
        )
    Console().print(table)
    by_name = {result.name: result.microseconds for result in results}
    growth = by_name[f"hami, {_POLICIES:,} policies"] / by_name["hami, 1 policy"]
    print(f"{_POLICIES:,} policies that do not match cost {growth:.2f} times what one costs")
    _RESULTS.parent.mkdir(exist_ok=True)
    report = {
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "results": [asdict(result) for result in results],
        "policies_ratio": growth,
    }
    _RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
