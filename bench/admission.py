"""Measures the pure core of admission on reviews as an API server sends them; `bench/results/admission.json`.

The baseline is `json.loads` of the same bytes: what any webhook in Python pays before it has looked at anything. Run by
`python -m bench.admission`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final

from bench.figures import Figure, publish
from bench.reviews import CASTSLICE, REVIEW_BYTES, review_body
from gpuslice.admission.context import Context
from gpuslice.admission.review import review
from gpuslice.policies.parsing import load_policies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROUNDS: Final = 30
_CALLS: Final = 200
_MANY: Final = 1000
#: More than are remembered.
_PODS: Final = 4000
_GOAL_MICROSECONDS: Final = 45
#: Nothing may cost more because there is more of it.
_GROWTH: Final = 1.1


def policy_documents(count: int) -> list[dict[str, Any]]:
    """Rules for other namespaces, other teams and other accounts."""
    matches: list[Callable[[int], dict[str, Any]]] = [
        lambda index: {"namespaces": [f"other-{index}"]},
        lambda index: {"namespaceSelector": {"matchLabels": {"team": f"other-{index}"}}},
        lambda index: {"podSelector": {"matchLabels": {"app": f"other-{index}"}}, "expression": "object.kind == 'Pod'"},
        lambda index: {"serviceAccounts": [f"other-{index}"]},
    ]
    return [
        {
            "apiVersion": "gpuslice.io/v1alpha1",
            "kind": "SlicePolicy",
            "metadata": {"name": f"policy-{index}"},
            "spec": {"rules": [{"name": "rule", "match": matches[index % len(matches)](index), "warnOnly": True}]},
        }
        for index in range(count)
    ]


def policies(count: int) -> Context:
    loaded = load_policies(policy_documents(count))
    assert not loaded.errors, loaded.errors
    labels = {f"research-{index}": {"team": "vision", "tier": f"{index}"} for index in range(_MANY)}
    return Context(policies=loaded.policies, namespace_labels=labels.__getitem__)


def hami(memory: int = 3000, namespace: str = "research-0", number: int = 0) -> bytes:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": f"{memory}"}
    return review_body(limits, {}, namespace=namespace, number=number)


def reviewing(bodies: Sequence[bytes], context: Context) -> Callable[[], object]:
    """Reviews them in turn."""
    for body in bodies:
        review(body, context)
    turns = cycle(bodies)
    return lambda: review(next(turns), context)


def measure() -> list[Figure]:
    one, many = policies(1), policies(_MANY)
    nothing, slots = (
        review_body(*asked, namespace="research-0") for asked in (({}, {}), ({"nvidia.com/gpu": "1"}, CASTSLICE))
    )
    work: dict[str, Callable[[], object]] = {
        "json.loads": lambda: json.loads(slots),
        "no GPU": reviewing([nothing], one),
        "castslice": reviewing([slots], one),
        "hami": reviewing([hami()], one),
        "hami, a pod unlike any before": reviewing([hami(1000 + number) for number in range(_PODS)], replace(one)),
        "policies": reviewing([hami()], many),
        "namespaces": reviewing([hami(namespace=f"research-{index}") for index in range(_MANY)], replace(one)),
        "templates": reviewing([hami(1000 + index) for index in range(_MANY)], replace(one)),
    }
    rounds: dict[str, list[float]] = {name: [] for name in work}
    # They take turns, so that a busy machine slows all of them alike.
    for _ in range(_ROUNDS):
        for name, call in work.items():
            start = time.process_time()
            for _ in range(_CALLS):
                call()
            rounds[name].append((time.process_time() - start) / _CALLS * 1e6)
    medians = {name: statistics.median(times) for name, times in rounds.items()}
    return _figures(medians)


def _figures(medians: dict[str, float]) -> list[Figure]:
    decoding = medians["json.loads"]
    return [
        *(
            Figure(name=f"{name}, to json.loads", unit="µs", value=medians[name], baseline=decoding)
            for name in ("no GPU", "castslice", "hami", "hami, a pod unlike any before")
        ),
        *(
            Figure(name=name, unit="µs", value=medians[name], at_most=_GOAL_MICROSECONDS)
            for name in ("no GPU", "castslice", "hami")
        ),
        *(
            Figure(name=what, unit="µs", value=medians[name], baseline=medians["hami"], at_most=_GROWTH)
            for name, what in (
                ("policies", f"hami, {_MANY:,} policies that do not match, to one"),
                ("namespaces", f"hami, pods of {_MANY:,} namespaces, to one"),
                ("templates", f"hami, pods of {_MANY:,} claim templates, to one"),
            )
        ),
    ]


def main() -> int:
    publish("admission", f"Admission's core, a review of {REVIEW_BYTES:,} bytes", "baseline", measure())
    return 0


if __name__ == "__main__":
    sys.exit(main())
