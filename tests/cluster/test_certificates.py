"""The webhook's own certificates on a real API server: shared, trusted, repaired, and renewed without a gap."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.kube.client import api as calls
from gpuslice.kube.client import credentials
from gpuslice.kube.client.api import Api
from gpuslice.kube.errors import ApiError
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import PODS
from gpuslice.pki.authority_state import Lifetimes
from gpuslice.pki.certificate_keeper import SECRET_NAME, SECRETS, CertificateKeeper
from gpuslice.pki.trust import split_bundle
from tests.cluster.kube.support import hosted, running
from tests.cluster.webhooks import Clock, Replica, bundles, documents, listed, owner, replica
from tests.unit.admission.making import container, pod
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from gpuslice_cluster.clusters import Cluster

Object = dict[str, Any]

SHORT = Lifetimes(authority=timedelta(minutes=40), serving=timedelta(minutes=15), settling=timedelta(minutes=1))
#: Then an authority gets a successor, and the first certificate is still valid.
SUCCESSION = timedelta(minutes=11)
GPU_POD = pod(container(limits={"nvidia.com/gpu": "1"}), annotations={"castops.io/optimize": "true"})


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Api]:
    async with calls.connect(cluster.kubeconfig, {}, "test") as connected:
        yield connected


@pytest.fixture
def configured(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A namespace whose pods go to a webhook, at an address without a server yet."""
    text = listed(documents(namespace, "https://127.0.0.1:1/", failure_policy="Fail"))
    cluster.kubectl("create", "-f", "-", input=text)
    yield namespace
    cluster.kubectl("delete", "-f", "-", input=text)


async def test_replicas_that_start_together_agree_and_are_trusted(api: Api, configured: str) -> None:
    async with replica(api, configured) as first, replica(api, configured) as second, replica(api, configured) as third:
        stored = await _secret(api, configured)

        for each in (first, second, third):
            assert each.certificates[-1].decode() == stored["tls.crt"]
        await _all_trusted(api, configured, first, second, third)


async def test_the_api_server_calls_it(cluster: Cluster, api: Api, configured: str) -> None:
    async with replica(api, configured) as only:
        await _point_at(cluster, api, configured, only)

        made = await _dry_run(api, configured)

    assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu-shared": "1"}


async def test_a_bundle_that_is_taken_out_is_put_back_and_nothing_else_is_touched(
    cluster: Cluster, api: Api, configured: str
) -> None:
    async with replica(api, configured):
        before = await bundles(api, configured)
        emptied = documents(configured, "https://127.0.0.1:2/")
        for document in emptied:
            document["webhooks"][0]["timeoutSeconds"] = 7
        cluster.kubectl("replace", "-f", "-", input=listed(emptied))

        await until(lambda: _same(bundles(api, configured), before), "that the bundles are back")
        found = json.loads(cluster.kubectl("get", "mutatingwebhookconfiguration", configured, "-o", "json"))
        found["webhooks"][0]["clientConfig"].pop("caBundle")
        assert found["webhooks"] == emptied[0]["webhooks"]


async def test_a_secret_that_is_deleted_is_put_back_as_it_was(cluster: Cluster, api: Api, configured: str) -> None:
    async with replica(api, configured) as only:
        before = await _secret(api, configured)
        cluster.kubectl("delete", "secret", SECRET_NAME, "--namespace", configured)

        await until(lambda: _same(_secret(api, configured), before), "that the secret is back")
        assert len(only.certificates) == 1, "nothing changed for who calls"


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "authorities.json"])
async def test_a_broken_secret_is_repaired_by_a_serving_replica_and_replaced_by_another(
    cluster: Cluster, api: Api, configured: str, key: str
) -> None:
    broken = json.dumps({"data": {key: base64.b64encode(b"nonsense").decode()}})
    async with replica(api, configured):
        before = await _secret(api, configured)
        cluster.kubectl("patch", "secret", SECRET_NAME, "--namespace", configured, "--patch", broken)
        await until(lambda: _same(_secret(api, configured), before), "that the secret is repaired")
    cluster.kubectl("patch", "secret", SECRET_NAME, "--namespace", configured, "--patch", broken)

    async with replica(api, configured) as other:
        assert other.certificates[-1].decode() == (await _secret(api, configured))["tls.crt"] != before["tls.crt"]
        await _all_trusted(api, configured, other)


async def test_an_authority_is_replaced_without_a_moment_of_distrust(
    cluster: Cluster, api: Api, configured: str
) -> None:
    clock = Clock()
    async with (
        replica(api, configured, now=clock, lifetimes=SHORT) as first,
        replica(api, configured, now=clock, lifetimes=SHORT) as second,
    ):
        await _point_at(cluster, api, configured, first)
        old = (await _secret(api, configured))["ca.crt"]
        async with asyncio.TaskGroup() as tasks:
            watcher = _Watcher(api, configured, first, second)
            watching = tasks.create_task(watcher.run())
            clock.ahead = SUCCESSION
            await _nudge(cluster, configured)
            await until(lambda: _have(api, configured, 2), "that both authorities are trusted")
            await until(lambda: _is_current(api, configured, first, second), "that both serve what is stored")
            await watcher.looks()
            await _dry_run(api, configured)

            clock.ahead += SHORT.settling * 2
            await _nudge(cluster, configured)
            await until(lambda: _by_the_newest(api, configured), "that the new authority issues")
            await until(lambda: _is_current(api, configured, first, second), "that both serve what is stored")
            await watcher.looks()
            await _dry_run(api, configured)
            watching.cancel()  # certificates that are made later than an hour from now are not valid yet

        assert old in (await _secret(api, configured))["ca.crt"], "a replica may still serve by it"
        while old in (await _secret(api, configured))["ca.crt"]:
            served = first.certificates[-1]
            clock.ahead += SUCCESSION  # a certificate is due then, too
            assert clock.ahead < timedelta(hours=3)
            await _nudge(cluster, configured)
            await until(lambda: _changed(first, second, served), "that both serve with a new certificate")  # noqa: B023
        await until(lambda: _lack(api, configured, old), "that no configuration trusts the old authority")


@pytest.mark.parametrize("after", [False, True], ids=["before-it", "after-it"])
async def test_a_replica_may_be_killed_at_any_step_and_the_next_one_goes_on(
    cluster: Cluster, api: Api, configured: str, *, after: bool
) -> None:
    """All that a replica leaves is what it wrote: so it is killed at each of its writes, in the order of a rotation."""
    clock = Clock()
    for step in range(1, 4):
        await _killed(cluster, configured, clock, step, after=after)
    async with replica(api, configured, now=clock, lifetimes=SHORT) as survivor:
        await _all_trusted(api, configured, survivor)

    clock.ahead = SUCCESSION
    for step in range(1, 4):
        await _killed(cluster, configured, clock, step, after=after)
    clock.ahead += SHORT.settling * 2
    await _killed(cluster, configured, clock, 1, after=after)
    async with replica(api, configured, now=clock, lifetimes=SHORT) as survivor:
        await until(lambda: _have(api, configured, 2), "that both authorities are trusted")
        await until(lambda: _is_current(api, configured, survivor), "that it serves what is stored")
        await _all_trusted(api, configured, survivor)
        clock.ahead += SHORT.settling * 2
        await _nudge(cluster, configured)
        await until(lambda: _by_the_newest(api, configured), "that the new authority issues")
        await until(lambda: _is_current(api, configured, survivor), "that it serves what is stored")
        await _all_trusted(api, configured, survivor)


class _KilledError(Exception):
    """Raised instead of, or after, a write: no write follows it."""


class _DyingApi(Api):
    """Does so many writes; the last one, too, only if it is to die after it."""

    def __init__(self, kubeconfig: Path, writes: int, *, after: bool) -> None:
        super().__init__(credentials.load(kubeconfig, {}), "test")
        self.died = asyncio.Event()
        self._left = writes
        self._after = after

    async def call(self, method: str, path: str, **others: Any) -> bytes:  # noqa: ANN401 - as it is called
        if method == "GET":
            return await super().call(method, path, **others)
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._after):
            self.died.set()
            raise _KilledError
        answer = await super().call(method, path, **others)
        if self._left == 0:
            self.died.set()
            raise _KilledError
        return answer


async def _killed(cluster: Cluster, namespace: str, clock: Clock, writes: int, *, after: bool) -> None:
    """Lets a replica run until its writes are done, or until it has nothing to write."""
    async with _DyingApi(cluster.kubeconfig, writes, after=after) as api:
        informers = Informers(api)
        keeper = CertificateKeeper(api, informers, owner(namespace), lambda *_: None, lifetimes=SHORT, now=clock)
        async with running(hosted(informers, keeper)):
            ends = [asyncio.create_task(each.wait()) for each in (api.died, keeper.serving)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                each.cancel()


class _Watcher:
    """Looks again and again whether each configuration trusts each server, as an API server that connects does."""

    def __init__(self, api: Api, namespace: str, *replicas: Replica) -> None:
        self._api = api
        self._namespace = namespace
        self._replicas = replicas
        self._looked = asyncio.Condition()
        self._count = 0

    async def run(self) -> None:
        while True:
            await _all_trusted(self._api, self._namespace, *self._replicas)
            async with self._looked:
                self._count += 1
                self._looked.notify_all()

    async def looks(self) -> None:
        """Returns when it has looked from beginning to end."""
        async with self._looked:
            wanted = self._count + 2
            await self._looked.wait_for(lambda: self._count >= wanted)


async def _all_trusted(api: Api, namespace: str, *replicas: Replica) -> None:
    for bundle in await bundles(api, namespace):
        for each in replicas:
            await each.is_trusted_by(base64.b64decode(bundle).decode())


async def _point_at(cluster: Cluster, api: Api, namespace: str, target: Replica) -> None:
    url = f"https://127.0.0.1:{target.port}/"
    cluster.kubectl("replace", "-f", "-", input=listed(documents(namespace, url, failure_policy="Fail")))

    async def called() -> bool:
        try:
            await _dry_run(api, namespace)
        except ApiError:
            return False
        return True

    await until(called, "that the API server reaches the webhook")


async def _dry_run(api: Api, namespace: str) -> Object:
    body = GPU_POD | {"metadata": GPU_POD["metadata"] | {"namespace": namespace}}
    made: Object = json.loads(await api.call("POST", PODS.path(namespace), parameters={"dryRun": "All"}, body=body))
    return made


async def _secret(api: Api, namespace: str) -> dict[str, str]:
    try:
        found = await api.get(SECRETS, SECRET_NAME, Object, namespace=namespace)
    except ApiError as error:
        if error.not_found:
            return {}
        raise
    return {key: base64.b64decode(text).decode() for key, text in found["data"].items()}


async def _nudge(cluster: Cluster, namespace: str) -> None:
    """No server notices that a test moved its clock, but all notice a change."""
    annotation = f"nudge={secrets.token_hex(8)}"
    cluster.kubectl("annotate", "secret", SECRET_NAME, "--namespace", namespace, "--overwrite", annotation)


async def _same(asked: Any, expected: object) -> bool:  # noqa: ANN401 - any of the questions above
    return bool(await asked == expected)


async def _have(api: Api, namespace: str, count: int) -> bool:
    found = [split_bundle(base64.b64decode(bundle).decode()) for bundle in await bundles(api, namespace)]
    return all(len(authorities) == count for authorities in found)


async def _changed(first: Replica, second: Replica, before: bytes) -> bool:
    return first.certificates[-1] == second.certificates[-1] != before


async def _lack(api: Api, namespace: str, authority: str) -> bool:
    return all(authority not in base64.b64decode(bundle).decode() for bundle in await bundles(api, namespace))


async def _is_current(api: Api, namespace: str, *replicas: Replica) -> bool:
    stored = await _secret(api, namespace)
    return all(each.certificates[-1].decode() == stored.get("tls.crt") for each in replicas)


async def _by_the_newest(api: Api, namespace: str) -> bool:
    authorities = json.loads((await _secret(api, namespace))["authorities.json"])
    return len(authorities) == 2 and "servesUntil" in authorities[-1]
