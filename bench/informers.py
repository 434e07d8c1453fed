"""Measures what an event of a watch costs an informer, against a watch of its own for each part that wants to know.

The events are changes of pods as an API server writes them, 4 KiB each. Variants take turns of less than a millisecond
of processor time, and the lowest tenth of the turns counts: what else the machine does can only add to it.

Sharing saves the connection, the server's work and the memory of the received bytes; each part still decodes what it
needs, so the processor's time must not exceed that of the watches that it replaces.

`python -m bench.informers` shows a table and writes `bench/results/informers.json`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from bench.figures import Figure, publish
from gpuslice.controller.reconcilers.pods_with_claims import PodWithClaims, needed_templates
from gpuslice.kube.client.api import Api
from gpuslice.kube.client.credentials import Credentials
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PODS: Final = 20
_TURNS: Final = 1000
_PARTS: Final = 3


def _pod(index: int, phase: str) -> dict[str, Any]:
    """About 4 KiB, as pods with two containers are."""
    container = {
        "name": "main",
        "image": "registry.example/team/trainer:1.2.3",
        "env": [{"name": f"VARIABLE_{number}", "value": "x" * 40} for number in range(20)],
        "resources": {"limits": {"cpu": "4", "memory": "16Gi"}, "claims": [{"name": "gpu"}]},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"trainer-{index}",
            "namespace": "research",
            "uid": f"00000000-0000-0000-0000-{index:012}",
            "resourceVersion": str(index),
            "labels": {"app": "trainer", "team": "vision"},
        },
        "spec": {
            "containers": [container, container],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": f"gpuslice-{index % 10}"}],
        },
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}] * 4},
    }


def _lines() -> list[bytes]:
    """Each pod changes so that what is kept of it changes, too."""
    return [
        json.dumps({"type": "MODIFIED", "object": _pod(index, phase)}).encode()
        for phase in ("Running", "Succeeded")
        for index in range(_PODS)
    ]


def _watches(api: Api, parts: int) -> Callable[[bytes], None]:
    applied = [_informers(api, 1) for _ in range(parts)]

    def apply(line: bytes) -> None:
        for each in applied:
            each(line)

    return apply


def _informers(api: Api, parts: int) -> Callable[[bytes], object]:
    informers = Informers(api)
    for _ in range(parts):
        informers.informer(PODS, PodWithClaims, needed_templates)
    return informers.watches[0]._apply  # noqa: SLF001 - measured


def _measure(variants: Sequence[Callable[[bytes], object]], lines: Sequence[bytes]) -> list[float]:
    """Microseconds per event, of each."""
    turns: list[list[float]] = [[] for _ in variants]
    for _ in range(_TURNS):
        for variant, found in zip(variants, turns, strict=True):
            began = time.thread_time_ns()
            for line in lines:
                variant(line)
            found.append((time.thread_time_ns() - began) / len(lines) / 1000)
    return [sorted(found)[len(found) // 10] for found in turns]


def main() -> int:
    api = Api(Credentials(server="http://127.0.0.1:1", tls=None), "bench")
    shared, watches = _measure([_informers(api, _PARTS), _watches(api, _PARTS)], _lines())
    publish(
        "informers",
        "what an event of a watch costs",
        "watches of their own",
        [
            Figure(name=f"{_PARTS} parts that share it", unit="µs", value=shared, baseline=watches, at_most=1.0),
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
