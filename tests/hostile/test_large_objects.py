"""Objects as large as the API server takes them make no process of ours run out of memory, and no list fail.

Their number is for tenants to choose, and their size is: a megabyte of `<` is six in an answer of the API server.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from gpuslice.kube import listing
from gpuslice.kube.client import transport
from gpuslice.kube.informers import Informers
from gpuslice.kube.reconciler import Manager
from gpuslice.kube.resources import RESOURCE_CLAIM_TEMPLATES
from gpuslice.system.supervised.health import Health
from tests.cluster.kube.conftest import quiet_api, quiet_cluster  # noqa: F401 - fixtures
from tests.cluster.kube.support import CONFIG_MAPS, ConfigMap, all_of, config_map, install_policies, running
from tests.cluster.kube.test_controller import _command, _get
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    import pytest

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

_MIB = 1024**2
#: Each is three megabytes of JSON; together they are half of what the controller's container may have.
_TEMPLATES = 90
_MOST_BYTES = 160 * _MIB


def _template(number: int) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": "gpuslice"}
    annotations = {"a": "<" * 255_000}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.gpuslice.io"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"large-{number}", "labels": labels, "annotations": annotations},
        "spec": {"metadata": {"annotations": annotations}, "spec": {"devices": {"requests": requests}}},
    }


async def test_large_templates_leave_a_controller_that_starts_its_memory(
    quiet_cluster: Cluster,  # noqa: F811 - a fixture
    quiet_api: Api,  # noqa: F811 - a fixture
) -> None:
    await asyncio.to_thread(install_policies, quiet_cluster)
    templates = (_template(number) for number in range(_TEMPLATES))
    await all_of((quiet_api.create(RESOURCE_CLAIM_TEMPLATES, each, namespace="default") for each in templates), 4)
    try:
        async with _command(quiet_cluster, "default") as (process, url):

            async def has_seen_all() -> bool:
                return f"gpuslice_templates {_TEMPLATES}.0" in await _get(f"{url}/metrics")

            await until(has_seen_all, "the controller has seen all templates")
            peak = _peak_bytes(process.pid)
    finally:
        await all_of(
            quiet_api.delete(RESOURCE_CLAIM_TEMPLATES, f"large-{number}", namespace="default")
            for number in range(_TEMPLATES)
        )
    assert peak < _MOST_BYTES, f"{peak / _MIB:.0f} MiB"


def _peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


async def test_pages_that_are_too_long_are_asked_for_in_parts(
    quiet_api: Api,  # noqa: F811 - a fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [10, 200_000, 10, 40_000, 40_000, *[10] * 20]
    for number, size in enumerate(sizes):
        document = config_map(f"part-{number:02}", value="x" * size)
        document["metadata"]["labels"] = {"test": "parts"}
        await quiet_api.create(CONFIG_MAPS, document, namespace="default")
    monkeypatch.setattr(listing, "PAGE_BYTES", 60_000)
    pages = [
        page async for page in listing.pages(quiet_api, CONFIG_MAPS.path(), {"labelSelector": "test=parts"}, size=16)
    ]

    counts = [len(page.items) for page in pages]
    assert sum(counts) == len(sizes)
    assert counts[0] == 1, "the second object is too long to come with the first"
    assert max(counts) > 1, "small objects come together again"
    assert [page.first for page in pages] == [True] + [False] * (len(pages) - 1)
    assert len({page.version for page in pages}) == 1


async def test_a_list_that_cannot_be_had_is_named_by_readyz(
    quiet_api: Api,  # noqa: F811 - a fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = config_map("endless", value="x" * 100_000)
    document["metadata"]["labels"] = {"test": "endless"}
    await quiet_api.create(CONFIG_MAPS, document, namespace="default")
    monkeypatch.setattr(transport, "_MOST_BYTES", 50_000)
    monkeypatch.setattr(listing, "PAGE_BYTES", 20_000)
    health = Health()
    informers = Informers(quiet_api)
    followed = informers.informer(CONFIG_MAPS, ConfigMap, lambda found: found.metadata.name, labels="test=endless")
    async with running(Manager(informers, health, CollectorRegistry(), ()).run()):
        await until(lambda: "configmaps cannot be listed: GET" in health.ready().text)
        assert "longer than 50000 bytes" in health.ready().text
        assert not followed.synced.is_set()
        monkeypatch.setattr(transport, "_MOST_BYTES", 500_000)
        await asyncio.wait_for(followed.synced.wait(), PATIENCE_SECONDS)
        assert "cannot be listed" not in health.ready().text
