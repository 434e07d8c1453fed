"""Quotas on a real API server, with `gpuslice webhook` (twice) and `gpuslice controller` as they are run.

No scheduler runs, so that every pod is pending unless a test says otherwise.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from gpuslice.controller import followed_policies
from gpuslice.controller.followed_quotas import FollowedQuotas
from gpuslice.controller.reconcilers.quota_tallies import QuotaTallies
from gpuslice.kube.errors import ApiError
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import NAMESPACES, PODS, Resource
from gpuslice.model.settings import DEFAULT_SETTINGS
from gpuslice.pki.trust import VALIDATING
from gpuslice.quotas.schema import GPU_QUOTAS, QUOTA_TALLIES, RESOURCE_QUOTAS
from gpuslice_cluster import control_plane
from gpuslice_cluster.clusters import Cluster, new_layout
from tests.cluster.kube.support import hosted, reach, running
from tests.cluster.sharing import run_process
from tests.hostile.installed import HOME, Installed, kill
from tests.unit.admission.making import container, pod
from tests.waiting import until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from gpuslice.kube.client.api import Api

Object = dict[str, Any]

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts")
JSON_PATCH = "application/json-patch+json"
COUNTING = "pods.under-gpu-quotas.gpuslice.io"


@dataclass
class Replicated(Installed):
    """With a second webhook on the same port: the kernel deals connections to both."""

    second: subprocess.Popen[str] | None = None

    def start_both_webhooks(self) -> None:
        self.start_webhook()
        if self.second is None:
            self.second = self._start(
                *("webhook", "--host=127.0.0.1", f"--port={self.ports[0]}", "--metrics-port=0", "--drain=0s")
            )

    def kill_webhooks(self) -> None:
        self.kill_webhook()
        kill(self.second)
        self.second = None


@pytest.fixture(scope="module")
def running_programs(tmp_path_factory: pytest.TempPathFactory, gpuslice_command: Path) -> Iterator[Replicated]:
    folder = tmp_path_factory.mktemp("quotas")
    cluster = Cluster(folder)
    cluster.start(control_plane.plan(new_layout(folder))[:2], owner=run_process())
    programs = Replicated(cluster, gpuslice_command, folder)
    try:
        programs.install()
        yield programs
        for log in folder.glob("*.log"):
            assert "forbidden" not in log.read_text(), "each has all the rights that it needs"
    finally:
        programs.kill_controller()
        programs.kill_webhooks()
        cluster.stop()


@pytest_asyncio.fixture
async def api(running_programs: Replicated) -> AsyncIterator[Api]:
    async with reach(running_programs.cluster) as connected:
        yield connected


@pytest_asyncio.fixture
async def installed(running_programs: Replicated) -> Replicated:
    await asyncio.to_thread(running_programs.start_both_webhooks)
    await asyncio.to_thread(running_programs.start_controller)
    return running_programs


@pytest_asyncio.fixture
async def team(api: Api) -> AsyncIterator[str]:
    """A namespace without a quota."""
    name = f"team-{secrets.token_hex(4)}"
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    await api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=name)
    yield name
    for resource in (GPU_QUOTAS, RESOURCE_QUOTAS, PODS):
        await api.call("DELETE", resource.path(name))
    await until(lambda: _no_tally(api, name), "its tally is gone")


def gpu_quota(name: str = "all", **hard: object) -> Object:
    return {
        "apiVersion": "gpuslice.io/v1alpha1",
        "kind": "GpuQuota",
        "metadata": {"name": name},
        "spec": {"hard": hard},
    }


def asking(name: str, **limits: object) -> Object:
    """A pod in gpuslice's own dialect."""
    named = {f"gpuslice.io/{resource}": amount for resource, amount in limits.items()}
    return pod(container(limits=named)) | {"metadata": {"name": name}}


def hami(name: str, megabytes: int) -> Object:
    return pod(container(limits={"nvidia.com/gpumem": str(megabytes)})) | {"metadata": {"name": name}}


async def test_racing_pods_never_exceed_the_quota_and_are_told_what_is_left(
    installed: Replicated, api: Api, team: str
) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota(memory="10Gi"))
    names = [f"racer-{number}" for number in range(24)]

    outcomes = await asyncio.gather(*(_create(api, team, asking(name, memory="1Gi")) for name in names))

    refused = [outcome for outcome in outcomes if outcome]
    assert len(refused) == 14, refused
    assert all("GpuQuota/all: the pod is charged 1Gi of memory, but of 10Gi in all" in each for each in refused)
    await until(lambda: _counted(api, team, "GpuQuota/all", {"memory": 10 * 2**30}), "all pods are counted")
    told = await _create(api, team, asking("late", memory="2Gi"))
    assert "10Gi are used and 0 are left" in told
    assert "most of it is held by racer-" in told
    await until(lambda: _shows(installed, team, "10Gi/10Gi"), "people see it")
    metrics = await asyncio.to_thread(installed.get, "/metrics")
    labels = f'namespace="{team}",quota="GpuQuota/all",resource="memory"'
    assert f"gpuslice_quota_used{{{labels}}} 1.073741824e+10" in metrics


@pytest.mark.usefixtures("installed")
async def test_pods_that_end_or_go_give_back_what_they_held(api: Api, team: str) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota(memory="4Gi", cores=100, devices=2))
    for name in ("first", "second"):
        assert not await _create(api, team, asking(name, memory="2Gi", cores=50))
    assert "are left" in await _create(api, team, asking("third", memory="1Gi", cores=10))

    await api.merge(PODS, "first", {"status": {"phase": "Succeeded"}}, namespace=team, part="status")
    await until(lambda: _fits(api, team, asking("third", memory="1Gi", cores=10)), "one that ended gives back")
    await api.call("DELETE", PODS.path(team, "second"), parameters={"gracePeriodSeconds": "0"})
    await until(lambda: _fits(api, team, asking("fourth", memory="2Gi", cores=50)), "one that is gone gives back")
    await until(
        lambda: _counted(api, team, "GpuQuota/all", {"memory": 3 * 2**30, "cores": 60, "devices": 2}), "all is counted"
    )


@pytest.mark.usefixtures("installed")
async def test_a_pod_counts_for_all_quotas_or_for_none(api: Api, team: str) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota("wide", memory="40Gi"))
    await _limit(api, team, GPU_QUOTAS, gpu_quota("narrow", devices=1))

    assert "GpuQuota/narrow" in await _create(api, team, _two_slices("greedy"))
    assert not await _create(api, team, asking("modest", memory="1Gi"))
    await until(
        lambda: _counted(api, team, "GpuQuota/wide", {"memory": 2**30}), "the wide one has the modest pod alone"
    )


@pytest.mark.usefixtures("installed")
async def test_a_dry_run_reserves_nothing_and_is_refused_alike(api: Api, team: str) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota(memory="1Gi"))
    for _ in range(3):
        assert not await _create(api, team, asking("dry", memory="1Gi"), dry_run=True)
    assert not (await _tally(api, team))["reservations"]
    assert "are left" in await _create(api, team, asking("dry", memory="2Gi"), dry_run=True)


async def test_killed_programs_neither_leak_nor_admit_too_much(installed: Replicated, api: Api, team: str) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota(memory="8Gi"))
    names = [f"pod-{number}" for number in range(20)]
    creating = [asyncio.create_task(_create(api, team, asking(name, memory="1Gi"))) for name in names]
    await until(lambda: any(task.done() for task in creating), "the first is answered")
    await asyncio.to_thread(installed.kill_controller)
    await asyncio.to_thread(installed.kill_webhooks)
    await asyncio.gather(*creating)
    assert "failed calling webhook" in await _create(api, team, asking("unseen", memory="1Gi"))

    await asyncio.to_thread(installed.start_both_webhooks)
    await asyncio.to_thread(installed.start_controller)
    for name in names:
        await _create_when_answered(api, team, asking(f"{name}-again", memory="1Gi"))
    held = len(json.loads(await api.call("GET", PODS.path(team)))["items"])
    ghosts = len((await _tally(api, team))["reservations"])
    assert held <= 8
    assert held + ghosts >= 8, "whatever is not held by pods is reserved for those that never came"

    async with _sweeping(api):  # as the controller does, in less than a minute
        await until(lambda: _counted(api, team, "GpuQuota/all", {"memory": held * 2**30}), "no ghost is left")


@pytest.mark.usefixtures("installed")
async def test_a_pod_that_is_refused_later_gives_back_what_was_reserved(api: Api, team: str) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota(memory="8Gi"))
    assert not await _create(api, team, asking("twin", memory="1Gi"))
    assert "already exists" in await _create(api, team, asking("twin", memory="1Gi"))
    tally = await _tally(api, team)
    assert tally["quotas"]["GpuQuota/all"]["used"]["memory"] == 2 * 2**30
    async with _sweeping(api):
        await until(lambda: _counted(api, team, "GpuQuota/all", {"memory": 2**30}), "the second twin's share is back")


@pytest.mark.usefixtures("installed")
async def test_a_resource_quota_on_names_of_dialects_keeps_holding(api: Api, team: str) -> None:
    hard = {"requests.nvidia.com/gpumem": "8000", "requests.nvidia.com/mig-1g.5gb": "1"}
    await _limit(api, team, RESOURCE_QUOTAS, {"metadata": {"name": "stock"}, "spec": {"hard": hard}})
    names = [f"share-{number}" for number in range(12)]

    outcomes = await asyncio.gather(*(_create(api, team, hami(name, 2000)) for name in names))

    refused = [outcome for outcome in outcomes if outcome]
    assert len(refused) == 8, refused
    assert all("ResourceQuota/stock: the pod is charged 2000 of requests.nvidia.com/gpumem" in each for each in refused)
    partition = pod(container(limits={"nvidia.com/mig-1g.5gb": "1"}))
    assert not await _create(api, team, partition | {"metadata": {"name": "partition"}})
    assert "requests.nvidia.com/mig-1g.5gb" in await _create(api, team, partition | {"metadata": {"name": "another"}})
    assert not await _create(api, team, asking("own", memory="4Gi")), "other dialects are not meant"


@pytest.mark.usefixtures("installed")
async def test_no_forged_record_gets_past_a_resource_quota(api: Api, team: str) -> None:
    hard = {"requests.nvidia.com/gpumem": "4000"}
    await _limit(api, team, RESOURCE_QUOTAS, {"metadata": {"name": "stock"}, "spec": {"hard": hard}})
    assert not await _create(api, team, hami("honest", 4000))
    spec = json.loads(await api.call("GET", PODS.path(team, "honest")))["spec"]
    same = container(resources=spec["containers"][0]["resources"])
    claimed = {"spec": {"containers": [same], "resourceClaims": spec["resourceClaims"]}}
    for written in (
        {},
        {"gpuslice.io/asked": "main:"},
        {"gpuslice.io/asked": "main: nvidia.com/gpumem=1"},
        {"gpuslice.io/asked": "other: nvidia.com/gpumem=1"},
        {"gpuslice.io/asked": "main: nvidia.com/gpumem=1", "gpuslice.io/dialect": "hami"},
    ):
        forged = pod() | claimed | {"metadata": {"name": "forged", "annotations": written}}
        forged["metadata"]["labels"] = {"gpuslice.io/sliced": "true"}
        told = await _create(api, team, forged)
        assert "ask in a dialect" in told, (written, told)
    true = {"gpuslice.io/asked": "main: nvidia.com/gpumem=4000"}
    told = await _create(api, team, pod() | claimed | {"metadata": {"name": "forged", "annotations": true}})
    assert "0 are left" in told, "a true record counts, whoever wrote it"

    with pytest.raises(ApiError, match="it stays as it is"):
        await api.merge(PODS, "honest", {"metadata": {"annotations": {"gpuslice.io/asked": None}}}, namespace=team)
    await api.merge(PODS, "honest", {"metadata": {"annotations": {"other": "changes"}}}, namespace=team)


@pytest.mark.usefixtures("installed")
async def test_what_cannot_be_sized_is_refused_where_gpus_are_counted(api: Api, team: str) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota(devices=8))
    for claim in ({"resourceClaimName": "made-by-hand"}, {"resourceClaimTemplateName": "own-template"}):
        with_claim = pod(container(resources={"claims": [{"name": "gpu"}]}), resourceClaims=[{"name": "gpu", **claim}])
        assert "ask for a GPU in a dialect" in await _create(api, team, with_claim | {"metadata": {"name": "claims"}})


@pytest.mark.usefixtures("installed")
async def test_a_resize_cannot_grow_what_is_held(api: Api, team: str) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota(devices=1))
    assert not await _create(
        api, team, pod(container(limits={"nvidia.com/gpu": "1"})) | {"metadata": {"name": "whole"}}
    )
    resources = {"limits": {"nvidia.com/gpu": "4"}, "requests": {"nvidia.com/gpu": "4"}}
    change = [{"op": "replace", "path": "/spec/containers/0/resources", "value": resources}]
    for part in ("", "resize"):
        with pytest.raises(ApiError):
            await api.call("PATCH", PODS.path(team, "whole", part), body=change, content=JSON_PATCH)


async def test_only_pods_with_gpus_under_a_quota_depend_on_the_webhook(
    installed: Replicated, api: Api, team: str
) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota(memory="8Gi"))
    await asyncio.to_thread(installed.kill_webhooks)
    assert COUNTING in await _create(api, team, pod(container(limits={"nvidia.com/gpu": "1"}), annotations={}))
    for sliced in ({}, {"labels": {"gpuslice.io/sliced": "true"}}):
        assert COUNTING in await _create(api, team, hami("forged", 1000) | {"metadata": {"name": "forged", **sliced}})
    assert not await _create(api, team, pod(container(limits={"cpu": "1"})) | {"metadata": {"name": "plain"}})
    selected = [hook for hook in await _validating(api) if hook["name"] == COUNTING]
    assert [each["namespaceSelector"]["matchExpressions"][0]["values"] for each in selected] == [[team]]


@pytest.mark.usefixtures("installed")
async def test_a_quota_that_is_gone_holds_no_pod(api: Api, team: str) -> None:
    await _limit(api, team, GPU_QUOTAS, gpu_quota(memory="1Gi"))
    assert "are left" in await _create(api, team, asking("large", memory="2Gi"))
    await api.delete(GPU_QUOTAS, "all", namespace=team)
    await until(lambda: _fits(api, team, asking("large", memory="2Gi")), "the quota is forgotten")
    await until(lambda: _no_tally(api, team), "its tally is gone")
    await until(lambda: _is_not_asked(api), "the webhook is not asked any more")


def _two_slices(name: str) -> Object:
    limits = {"gpuslice.io/memory": "1Gi"}
    return pod(container(limits=limits), container("other", limits=limits)) | {"metadata": {"name": name}}


async def _limit(api: Api, namespace: str, resource: Resource, quota: Object) -> None:
    """Returns when the quota is counted, and the API server asks about the namespace's pods."""
    name = quota["metadata"]["name"]
    await api.create(resource, quota, namespace=namespace)
    if resource is RESOURCE_QUOTAS:  # as Kubernetes' own controller would, which does not run here
        hard = quota["spec"]["hard"]
        status = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        await api.merge(resource, name, status, namespace=namespace, part="status")

    async def in_force() -> bool:
        asked = [hook for hook in await _validating(api) if hook["name"] == COUNTING]
        names = [each["namespaceSelector"]["matchExpressions"][0]["values"] for each in asked]
        if not any(namespace in each for each in names):
            return False
        kind = "GpuQuota" if resource is GPU_QUOTAS else "ResourceQuota"
        return f"{kind}/{name}" in (await _tally(api, namespace))["quotas"]

    await until(in_force, "the quota is in force")
    # The API server reads its own configurations a moment later than it stores them.
    probe = pod(container(limits={"example.com/none": "1"}), resourceClaims=[{"name": "x", "resourceClaimName": "x"}])
    probe["metadata"] = {"name": "probe", "annotations": {"gpuslice.io/asked": "main: nvidia.com/gpu=1"}}

    async def is_asked() -> bool:
        return "gpuslice" in await _create(api, namespace, probe, dry_run=True)

    await until(is_asked, "the webhook is asked")


async def _create(api: Api, namespace: str, asked: Object, *, dry_run: bool = False) -> str:
    """Empty, or why it is refused."""
    parameters = {"dryRun": "All"} if dry_run else {}
    asked["metadata"].pop("namespace", None)
    try:
        await api.call("POST", PODS.path(namespace), parameters=parameters, body=asked)
    except ApiError as error:
        return str(error)
    return ""


async def _create_when_answered(api: Api, namespace: str, asked: Object) -> str:
    told = ""

    async def is_answered() -> bool:
        nonlocal told
        told = await _create(api, namespace, asked)
        return "failed calling webhook" not in told and "try again" not in told

    await until(is_answered, "the webhook answers")
    return told


async def _fits(api: Api, namespace: str, asked: Object) -> bool:
    return not await _create(api, namespace, asked)


async def _tally(api: Api, namespace: str) -> Object:
    try:
        found = json.loads(await api.call("GET", QUOTA_TALLIES.path(HOME, namespace)))
    except ApiError as error:
        if error.not_found:
            return {"quotas": {}, "reservations": {}}
        raise
    spec: Object = found["spec"]
    return spec


async def _no_tally(api: Api, namespace: str) -> bool:
    return not (await _tally(api, namespace))["quotas"]


async def _counted(api: Api, namespace: str, quota: str, used: dict[str, int]) -> bool:
    """Whether so much is used, and nothing of it reserved any more."""
    tally = await _tally(api, namespace)
    return bool(not tally["reservations"] and tally["quotas"][quota]["used"] == used)


async def _validating(api: Api) -> list[Object]:
    configuration = await api.get(VALIDATING, "gpuslice", Object)
    webhooks: list[Object] = configuration["webhooks"]
    return webhooks


async def _is_not_asked(api: Api) -> bool:
    return not [hook for hook in await _validating(api) if hook["name"] == COUNTING]


async def _shows(installed: Installed, namespace: str, text: str) -> bool:
    shown = await asyncio.to_thread(installed.cluster.kubectl, "get", "gpuquotas", "--namespace", namespace)
    return text in shown


def _sweeping(api: Api) -> Any:  # noqa: ANN401 - an async context manager
    """The controller's reconciler, with a grace that a test can wait for. It runs beside the controller's own: what
    two of them write is compared and swapped.
    """
    informers = Informers(api)
    quotas = FollowedQuotas(informers, followed_policies.follow(informers), DEFAULT_SETTINGS, HOME)
    return running(hosted(informers, QuotaTallies(api, quotas, grace=1.0)))
