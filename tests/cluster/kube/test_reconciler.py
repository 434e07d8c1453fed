"""A reconciler on a real API server: what it keeps is as it should be, whatever others do to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

import structlog
from prometheus_client import CollectorRegistry

from gpuslice.kube.errors import ApiError
from gpuslice.kube.informers import Informers
from gpuslice.kube.leases import LeaderElection, Terms
from gpuslice.kube.reconciler import Manager, Reconciler, Trigger
from gpuslice.system.supervised.health import Health
from tests.cluster.kube.support import CONFIG_MAPS, ConfigMap, Told, config_map, restart_api_server, running
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster


def _value(found: ConfigMap) -> str | None:
    return (found.data or {}).get("value")


class _Copier(Reconciler[str]):
    """Keeps a copy of each config map of the label `original`."""

    name: ClassVar[str] = "copier"
    longest_wait: ClassVar[float] = 0.5

    def __init__(self, informers: Informers, api: Api, label: str) -> None:
        self.api = api
        self.label = label
        self.copies = 0
        self.originals = informers.informer(CONFIG_MAPS, ConfigMap, _value, labels=f"original={label}")
        self.copied = informers.informer(CONFIG_MAPS, ConfigMap, _value, labels=f"copy={label}")

    def triggers(self) -> Iterator[Trigger[str]]:
        yield Trigger(self.originals, lambda key, _old, _new: (key[1],))
        yield Trigger(self.copied, lambda key, _old, _new: (key[1].removeprefix("copy-"),))

    async def reconcile(self, key: str) -> None:
        wanted = self.originals.store.get("default", key)
        if self.copied.store.get("default", f"copy-{key}") == wanted:
            return
        if wanted == "poison":
            raise ValueError("broken")
        try:
            await self.api.delete(CONFIG_MAPS, f"copy-{key}", namespace="default")
        except ApiError as error:
            if not error.not_found:
                raise
        if wanted is not None:
            document = config_map(f"copy-{key}", value=wanted)
            document["metadata"]["labels"] = {"copy": self.label}
            await self.api.create(CONFIG_MAPS, document, namespace="default")
            self.copies += 1


async def _write(api: Api, label: str, name: str, value: str) -> None:
    document = config_map(name, value=value)
    document["metadata"]["labels"] = {"original": label}
    await api.create(CONFIG_MAPS, document, namespace="default")


async def test_what_a_reconciler_keeps_is_made_repaired_and_removed(quiet_cluster: Cluster, quiet_api: Api) -> None:
    informers, health, registry = Informers(quiet_api), Health(), CollectorRegistry()
    copier = _Copier(informers, quiet_api, "kept")
    manager = Manager(informers, health, registry, [copier])
    told = Told(copier.copied.store)
    await _write(quiet_api, "kept", "kept-old", "1")
    with structlog.testing.capture_logs() as logged:
        async with running(manager.run()):
            await told.until(lambda store: store.get("default", "copy-kept-old") == "1")
            assert health.ready().well
            await _write(quiet_api, "kept", "kept-poison", "poison")
            await _write(quiet_api, "kept", "kept-new", "2")
            await told.until(lambda store: store.get("default", "copy-kept-new") == "2")
            await quiet_api.merge(CONFIG_MAPS, "copy-kept-new", {"data": {"value": "spoilt"}}, namespace="default")
            await told.until(lambda store: store.get("default", "copy-kept-new") == "spoilt")
            await told.until(lambda store: store.get("default", "copy-kept-new") == "2")
            await restart_api_server(quiet_cluster)
            await quiet_api.delete(CONFIG_MAPS, "kept-old", namespace="default")
            await told.until(lambda store: store.get("default", "copy-kept-old") is None)
            await quiet_api.merge(CONFIG_MAPS, "kept-poison", {"data": {"value": "3"}}, namespace="default")
            await told.until(lambda store: store.get("default", "copy-kept-poison") == "3")
    failed = [entry for entry in logged if entry["event"] == "work on a key failed; trying again"]
    assert "kept-poison" in {entry["key"] for entry in failed}
    assert (registry.get_sample_value("gpuslice_workqueue_retries_total", {"queue": "copier"}) or 0) >= 1
    assert registry.get_sample_value("gpuslice_part_failures_total", {"part": "copier"}) == 0


async def test_only_the_leader_reconciles_and_the_next_takes_over(quiet_api: Api) -> None:
    terms = Terms(duration=2, deadline=1.5, interval=0.2)

    def contender(name: str) -> tuple[_Copier, LeaderElection, asyncio.Task[None]]:
        informers = Informers(quiet_api)
        copier = _Copier(informers, quiet_api, "led")
        election = LeaderElection(quiet_api, "default", "led", name, terms)
        manager = Manager(informers, Health(), CollectorRegistry(), [copier])
        return copier, election, asyncio.create_task(election.run(manager.run))

    first, first_election, first_run = contender("first")
    second_run: asyncio.Task[None] | None = None
    try:
        await until(first_election.leading.is_set)
        second, second_election, second_run = contender("second")
        await _write(quiet_api, "led", "led-one", "1")
        await until(lambda: first.copies == 1)
        assert not second_election.leading.is_set()
        assert not second.originals.synced.is_set(), "who waits for its turn watches nothing"
        first_run.cancel()
        await asyncio.wait((first_run,))
        await until(second_election.leading.is_set)
        await _write(quiet_api, "led", "led-two", "2")
        await until(lambda: second.copies == 1)
        assert first.copies == 1
    finally:
        for task in (first_run, second_run):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
