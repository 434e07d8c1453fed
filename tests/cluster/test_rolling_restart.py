"""The webhook is replaced while the real API server calls it for every pod, and no pod is refused for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpuslice.kube.resources import Resource
from tests.cluster.kube.support import install_policies, reach
from tests.cluster.served import Served, created, end
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

PODS = Resource("", "v1", "pods")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "castslice.yaml"
CLIENTS = 4
RESTARTS = 3


@pytest.fixture
def served(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Served]:
    install_policies(cluster)
    served = Served(cluster, tmp_path, namespace)
    yield served
    served.stop()


async def test_a_rolling_restart_under_load_loses_no_request(served: Served) -> None:
    pod: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    running = [served.start(), served.start()]
    # A webhook that must answer: if it does not once, a pod is refused, and we see it.
    served.configure(failure_policy="Fail")
    await asyncio.to_thread(eventually, lambda: _is_rewritten(served, pod), "the webhook is called")
    done = asyncio.Event()
    async with reach(served.cluster) as api:
        clients = [asyncio.create_task(_create_until(done, api, served.namespace, pod)) for _ in range(CLIENTS)]
        for _ in range(RESTARTS):
            # As a Deployment does it: the new one is ready before the old one goes.
            replacement = await asyncio.to_thread(served.start)
            code = await asyncio.to_thread(end, running.pop(0))
            assert code == 0
            running.append(replacement)
        done.set()
        counts = await asyncio.gather(*clients)

    assert all(count > 10 for count in counts), counts


async def _create_until(done: asyncio.Event, api: Api, namespace: str, pod: dict[str, Any]) -> int:
    """Raises at the first pod that is refused, or not rewritten."""
    count = 0
    while not done.is_set():
        answer = await api.call("POST", PODS.path(namespace), parameters={"dryRun": "All"}, body=pod)
        assert json.loads(answer)["metadata"]["annotations"]["gpuslice.io/dialect"] == "castslice"
        count += 1
    return count


def _is_rewritten(served: Served, pod: dict[str, Any]) -> bool:
    made = created(served.cluster, served.namespace, pod, "--dry-run=server")
    return "gpuslice.io/dialect" in made["metadata"]["annotations"]
