"""What once let pods pass unreviewed, against a webhook that a real API server calls with its certificate."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission.pod_annotations import SLICE
from gpuslice_cluster import control_plane
from gpuslice_cluster.clusters import Cluster, free_ports, new_layout
from gpuslice_cluster.control_plane import WEBHOOK_AUTHORITY
from tests.cluster.kube.support import install_policies
from tests.cluster.served import Served
from tests.cluster.sharing import run_process
from tests.hostile.webhook.flood import connects, held
from tests.unit.admission.making import review_of
from tests.waiting import eventually
from tests.webhook.support import CASTSLICE, JSON, NO_GPU, Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMESPACE = "team"
#: One more than there may be connections, and some.
POSTED = 1040
IDLE = 200
PODS = 24
CREATORS = 4
TENANTS = tuple(f"127.0.0.{number}" for number in range(2, 6))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A control plane of the test's own: its API server is started with credentials for this webhook."""
    ports = free_ports(2)
    cluster = Cluster(tmp_path / "cluster")
    cluster.folder.mkdir()
    layout = new_layout(cluster.folder, webhooks=(f"127.0.0.1:{ports[0]}",))
    cluster.start(control_plane.plan(layout)[:2], owner=run_process())
    try:
        cluster.kubectl("create", "namespace", NAMESPACE)
        cluster.kubectl("create", "serviceaccount", "default", "--namespace", NAMESPACE)
        install_policies(cluster)
        made = Served(cluster, tmp_path, NAMESPACE, ports)
        try:
            made.start(**{"client-authority": str(cluster.folder / WEBHOOK_AUTHORITY / "ca.crt")})
            made.configure()
            yield made
        finally:
            made.stop()
    finally:
        cluster.stop()


def test_every_pod_is_reviewed_while_tenants_crowd_the_port(served: Served) -> None:
    eventually(lambda: _is_rewritten(served, "first"), "the webhook is called", seen=served.metrics)
    called = _sample(served, "castslice_requests_total")
    port = served.ports[0]
    trust = served.client_context()
    with ExitStack() as stack:
        stack.enter_context(held(IDLE, port, trust, TENANTS[0], lambda client: client.ask("GET", "/healthz")))
        for _ in range(POSTED // len(TENANTS)):
            for tenant in TENANTS:
                with Client(port, trust, tenant) as client:
                    assert client.ask("POST", "/mutate", review_of(NO_GPU), JSON).status == 403
        count = stack.enter_context(connects(port, TENANTS))
        eventually(lambda: count() > POSTED, "the attack has begun")
        with ThreadPoolExecutor(CREATORS) as creators:
            rewritten = list(creators.map(lambda number: _is_rewritten(served, f"pod-{number}"), range(PODS)))
        attempts = count()
    assert all(rewritten), f"{rewritten.count(False)} of {PODS} pods passed unreviewed beside {attempts} connects"
    assert _sample(served, "castslice_requests_total") == called + PODS, "reviews of unproven clients count for nothing"
    assert _sample(served, 'gpuslice_webhook_faults_total{reason="unauthenticated"}') == POSTED
    assert _sample(served, 'gpuslice_webhook_faults_total{reason="crowded_out"}') > 0


def _is_rewritten(served: Served, name: str) -> bool:
    asked: dict[str, Any] = CASTSLICE | {"metadata": CASTSLICE["metadata"] | {"name": name, "namespace": NAMESPACE}}
    made = served.cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(asked))
    return SLICE in json.loads(made)["metadata"]["annotations"]


def _sample(served: Served, name: str) -> float:
    (found,) = (line for line in served.metrics().splitlines() if line.startswith(f"{name} "))
    return float(found.rpartition(" ")[2])
