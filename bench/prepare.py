"""How long a pod waits for its slice: prepare and unprepare over the agent's real socket, with 1 and 100 slices there.

`python -m bench.prepare` shows a table and writes `bench/results/prepare.json`. Claims are read over HTTP from this
process, and the baseline is a call over the same kind of socket that the agent answers without doing anything.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.figures import Figure, publish
from gpuslice.simulator import configuration, machine
from tests.node import kubernetes_node
from tests.node.kubelet import ClaimServer, Share
from tests.support import SimulatedMachine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.node.kubernetes_node import KubernetesNode

_TURNS: Final = 300
_SLICES: Final = (1, 100)
_GOAL_MILLISECONDS: Final = 25.0


def timed(work: Callable[[], object]) -> float:
    """In milliseconds."""
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def measure(node: KubernetesNode) -> list[Figure]:
    device = node.device()
    empty = percentile([timed(node.kubelet.information) for _ in range(_TURNS)], 50)
    figures, present = [], 0
    for slices in _SLICES:
        while present < slices - 1:
            present += 1
            node.kubelet.prepared(node.claim(f"there-{present}", Share(device, memory="64Mi")))
        prepare, unprepare = [], []
        for turn in range(_TURNS):
            claim = node.claim(f"turn-{slices}-{turn}", Share(device, memory="64Mi", cores=1))
            prepare.append(timed(lambda claim=claim: node.kubelet.prepared(claim)))  # type: ignore[misc]
            unprepare.append(timed(lambda claim=claim: node.kubelet.unprepare(claim)))  # type: ignore[misc]
        for name, values in (("prepare", prepare), ("unprepare", unprepare)):
            figures += [
                Figure(
                    name=f"{name}, {slices} slice{'s' if slices > 1 else ''}, p{percent}",
                    unit="ms",
                    value=percentile(values, percent),
                    baseline=empty if percent == 50 else None,
                    at_most=_GOAL_MILLISECONDS if percent == 99 else None,
                )
                for percent in (50, 99)
            ]
    return figures


def main() -> int:
    simulated = machine.create(configuration.from_text("8xA100-80GB", name=f"bench-{os.getpid()}"))
    folder = Path(tempfile.mkdtemp(prefix="gpuslice-bench.", dir="/dev/shm"))
    api = ClaimServer(folder)
    node = kubernetes_node.make(SimulatedMachine(simulated), Path(sys.executable).parent / "gpuslice", folder, api)
    try:
        node.agent.start()
        figures = measure(node)
    finally:
        if node.agent.process is not None and node.agent.process.poll() is None:
            node.agent.stop()
        api.close()
        shutil.rmtree(folder)
        simulated.destroy()
    publish("prepare", "What a pod waits for its slice", "an empty call", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
