"""Measures `gpuslice webhook` against a webhook of the usual design in Go, under the same load in the same run.

Both serve CastSlice's rewrite over TLS, each in a process of its own, and write a line about each review. They take
turns of half a second: 25 keep-alive connections send reviews of 5.7 KB as fast as they are answered. Most pods of a
cluster are pods of some workload, and like those before them; that is what the goals are for. What a pod unlike any
other costs stands beside it. `python -m bench.webhook` shows a table and writes `bench/results/webhook.json`.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import servers
from bench.figures import Figure, publish
from bench.reviews import castslice_pods
from bench.turns import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.servers import Load

_ROUNDS: Final = 15
_SECONDS: Final = 0.5
_WARM_UP: Final = 0.1
#: Pods of few workloads, as a cluster has them; and of so many that no two pods in a row of thousands are alike.
_PODS: Final = 4000
_WORKLOADS: Final = 40


def measure() -> list[Figure]:
    programs = servers.build_peer()
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench.") as work, ExitStack() as stack:
        folder = Path(work)
        certificates = servers.Certificates.make(folder)
        peer = stack.enter_context(servers.peer(certificates, programs))
        ours = stack.enter_context(servers.ours(certificates))
        usual, different = (
            servers.Generator(programs, certificates, castslice_pods(_PODS, workloads), folder)
            for workloads in (_WORKLOADS, _PODS)
        )
        runs: dict[str, list[Load]] = {"peer": [], "usual": [], "different": []}
        for _ in range(_ROUNDS):
            runs["peer"].append(usual.run(peer, seconds=_SECONDS, warm_up=_WARM_UP))
            runs["usual"].append(usual.run(ours, seconds=_SECONDS, warm_up=_WARM_UP))
            runs["different"].append(different.run(ours, seconds=_SECONDS, warm_up=_WARM_UP))
        resident = Figure(
            name="resident memory", unit="MB", value=ours.resident_megabytes(), baseline=peer.resident_megabytes()
        )
        memory = Figure(name="resident memory, as such", unit="MB", value=resident.value, at_most=60)
    return [
        *_figures(f"pods of {_WORKLOADS} workloads", runs["usual"], runs["peer"]),
        *(
            replace(figure, at_least=None, at_most=None)
            for figure in _figures("no two pods alike", runs["different"], runs["peer"])
        ),
        resident,
        memory,
    ]


def _figures(what: str, runs: Sequence[Load], peer: Sequence[Load]) -> list[Figure]:
    def figure(name: str, unit: str, of: Callable[[Load], float], **goal: float) -> Figure:
        """Of times, the low ones count; of rates, the inverse of the low times."""
        ours, other = (Sample([of(load) for load in each]) for each in (runs, peer))
        value, baseline = (1 / sample.low if unit.startswith("per") else sample.low for sample in (ours, other))
        spread = max(ours.spread, other.spread)
        return Figure(name=f"{what}: {name}", unit=unit, value=value, baseline=baseline, spread=spread, **goal)

    return [
        figure("reviews", "per s", lambda load: 1 / load.per_second),
        figure("reviews", "per CPU s", lambda load: load.processor_microseconds / 1e6, at_least=6),
        figure("CPU", "µs", lambda load: load.processor_microseconds),
        figure("median", "ms", lambda load: load.p50_ms),
        figure("99th percentile", "ms", lambda load: load.p99_ms, at_most=0.2),
    ]


def main() -> int:
    publish("webhook", "A review over TLS, 25 connections", "Go peer", measure())
    return 0


if __name__ == "__main__":
    sys.exit(main())
