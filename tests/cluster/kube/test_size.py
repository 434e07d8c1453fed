"""A large cluster costs the webhook little: a thousand each of namespaces and policies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from gpuslice.admission.cluster.state import ClusterState
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import NAMESPACES
from gpuslice.policies.stored_policies import SLICE_POLICIES
from tests.cluster.kube.support import all_of, install_policies, policy, reach, running
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

_MANY = 1000
_MIB = 1024**2
#: Of the webhook with all that it keeps.
_MOST_BYTES = 64 * _MIB


def _policy(number: int) -> dict[str, Any]:
    match: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"team": f"team-{number}"}}}
    if number % 10 == 0:
        match["expression"] = f"object.metadata.labels['tier'] == 'tier-{number}'"
    rule = {"name": "only", "match": match, "maximum": {"memory": "16Gi"}, "nodeSelector": {"pool": f"p{number}"}}
    return policy(f"policy-{number}", rule)


def _namespace(number: int) -> dict[str, Any]:
    labels = {"team": f"team-{number}", "cost-centre": str(number), "environment": "production"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"space-{number}", "labels": labels}}


@pytest.fixture(scope="module")
def large_cluster(quiet_cluster: Cluster) -> Cluster:
    install_policies(quiet_cluster)

    async def fill() -> None:
        async with reach(quiet_cluster) as api:
            await all_of(api.create(NAMESPACES, _namespace(number)) for number in range(_MANY))
            await all_of(api.create(SLICE_POLICIES, _policy(number)) for number in range(_MANY))

    asyncio.run(fill())
    return quiet_cluster


async def test_all_of_a_large_cluster_is_known_and_one_change_reads_one_policy(
    large_cluster: Cluster, quiet_api: Api
) -> None:
    del large_cluster
    informers = Informers(quiet_api)
    state = ClusterState(quiet_api, informers)
    async with running(informers.run(), state.run()):
        await until(state.synced)
        assert len(state.context().policies.rules) == _MANY
        assert len(state.namespaces.store) >= _MANY
        before = dict(state.policies.store.items())

        await quiet_api.merge(SLICE_POLICIES, "policy-7", {"spec": {"priority": 9}})
        await until(lambda: state.context().policies.rules[0].policy == "policy-7")
        changed = [key for key, parsed in state.policies.store.items() if parsed is not before[key]]
        assert changed == [("", "policy-7")]


@contextlib.asynccontextmanager
async def _webhook(cluster: Cluster, folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    certificate.private_key_pem.write_to_path(folder / "tls.key")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from gpuslice.cli.main import main; main()", "webhook",
        f"--kubeconfig={cluster.kubeconfig}", f"--certificate={folder / 'tls.crt'}", f"--key={folder / 'tls.key'}",
        "--address=127.0.0.1", "--port=0", "--metrics-port=0", "--drain=0",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            said = ""
            while (found := re.search(r"http://[^\s,/]+", said)) is None:
                line = (await process.stdout.readline()).decode()
                assert line, f"the webhook ended after {said!r}"
                said += line
        yield process, found[0]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz") as answer:  # noqa: S310 - ours
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_the_webhook_of_a_large_cluster_stays_small(large_cluster: Cluster, tmp_path: Path) -> None:
    async with _webhook(large_cluster, tmp_path) as (process, url):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await asyncio.to_thread(_is_ready, url):  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.05)
        resident = _resident_bytes(process.pid)

    assert resident < _MOST_BYTES, f"{resident / _MIB:.1f} MiB"
