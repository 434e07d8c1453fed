"""Informers share one list and watch, and each part of the process has what it needs of it, whatever happens."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Never

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from gpuslice.kube.errors import ApiError
from gpuslice.kube.informers import Informer, InformerCollector, Informers
from gpuslice.kube.resources import NAMESPACES, Metadata, ObjectMetadata, Resource
from gpuslice.kube.store import by_namespace
from tests.cluster.kube.support import (
    CONFIG_MAPS,
    Cable,
    ConfigMap,
    Told,
    compact,
    config_map,
    install_policies,
    policy,
    reach,
    restart_api_server,
    running,
)
from tests.waiting import until

if TYPE_CHECKING:
    import pytest

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster


def _value(found: ConfigMap) -> str | None:
    return (found.data or {}).get("value")


def _name(found: ObjectMetadata) -> str:
    return found.metadata.name


def _values(informers: Informers, label: str) -> Informer[str]:
    return informers.informer(CONFIG_MAPS, ConfigMap, _value, labels=f"test={label}")


def _names(informers: Informers, label: str) -> Informer[str]:
    return informers.informer(CONFIG_MAPS, ObjectMetadata, _name, labels=f"test={label}")


async def _put(api: Api, label: str, name: str, value: str, namespace: str = "default") -> None:
    document = config_map(name, value=value)
    document["metadata"]["labels"] = {"test": label}
    try:
        await api.create(CONFIG_MAPS, document, namespace=namespace)
    except ApiError as error:
        if not error.conflict:
            raise
        await api.merge(CONFIG_MAPS, name, {"data": {"value": value}}, namespace=namespace)


async def test_several_share_one_list_and_watch_and_each_has_its_own_of_it(
    quiet_cluster: Cluster, quiet_api: Api
) -> None:
    label = "shared"
    await _put(quiet_api, label, "shared-old", "1")
    async with Cable(quiet_cluster) as cable, cable.reach() as through:
        informers = Informers(through)
        values, names = _values(informers, label), _names(informers, label)
        long = informers.informer(
            CONFIG_MAPS, ConfigMap, lambda found: True if len(_value(found) or "") > 1 else None, labels=f"test={label}"
        )
        told, told_names, told_long = Told(values.store), Told(names.store), Told(long.store)
        async with running(informers.run()):
            await informers.wait_for_sync()
            await _put(quiet_api, label, "shared-new", "22")
            await _put(quiet_api, label, "shared-old", "3")
            await quiet_api.delete(CONFIG_MAPS, "shared-new", namespace="default")
            await told.until(lambda store: len(store) == 1 and store.get("default", "shared-old") == "3")
        assert cable.connections == 2, "one for lists, one for the watch"

    old, new = ("default", "shared-old"), ("default", "shared-new")
    assert told.changes == [(old, None, "1"), (new, None, "22"), (old, "1", "3"), (new, "22", None)]
    assert told_names.changes == [(old, None, "shared-old"), (new, None, "shared-new"), (new, "shared-new", None)]
    assert told_long.changes == [(new, None, True), (new, True, None)]
    assert [watch.relists for watch in informers.watches] == [1]


async def test_other_selectors_are_another_watch(quiet_api: Api) -> None:
    informers = Informers(quiet_api)
    for namespace, labels, fields in (
        ("", "", ""),
        ("", "a=b", ""),
        ("", "", "metadata.name=a"),
        ("default", "", ""),
        ("", "", ""),
    ):
        informers.informer(CONFIG_MAPS, ObjectMetadata, _name, namespace=namespace, labels=labels, fields=fields)
    assert [len(watch.informers) for watch in informers.watches] == [2, 1, 1, 1]


async def test_only_metadata_is_asked_for_until_a_part_needs_more(
    quiet_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = "late"
    await _put(quiet_api, label, "late-one", "1")
    informers = Informers(quiet_api)
    names, seen = _names(informers, label), list[bytes]()
    documents = informers.informer(
        CONFIG_MAPS, ObjectMetadata, lambda found: found.metadata.resource_version, labels=f"test={label}"
    )
    read = names.read

    def overheard(document: msgspec.Raw) -> tuple[Metadata, str | None]:
        seen.append(bytes(document))
        return read(document)

    monkeypatch.setattr(names, "read", overheard)
    told, versions = Told(names.store), Told(documents.store)
    async with running(informers.run()):
        await informers.wait_for_sync()
        assert b'"data"' not in seen[-1]

        values = _values(informers, label)
        assert not values.synced.is_set()
        async with asyncio.timeout(120):
            await values.synced.wait()
        assert values.store.get("default", "late-one") == "1"
        assert b'"data"' in seen[-1]
        await _put(quiet_api, label, "late-two", "2")
        await told.until(lambda store: len(store) == 2)

    assert len(told.changes) == len(versions.changes) == 2, "what was known is not told again"
    assert values.store.get("default", "late-two") == "2"
    assert [watch.relists for watch in informers.watches] == [2]


async def test_what_is_listed_again_is_not_synced_meanwhile_and_not_told_twice(quiet_api: Api) -> None:
    await _put(quiet_api, "again", "again-one", "1")
    informers = Informers(quiet_api)
    values, names = _values(informers, "again"), _names(informers, "again")
    told = Told(values.store)
    async with running(informers.run()):
        await informers.wait_for_sync()
        values.list_again()
        assert not values.synced.is_set()
        assert not names.synced.is_set()
        async with asyncio.timeout(120):
            await informers.wait_for_sync()
        assert values.store.get("default", "again-one") == "1"
    assert len(told.changes) == 1
    assert [watch.relists for watch in informers.watches] == [2]


async def test_a_kind_that_is_known_to_be_served_is_not_taken_for_absent(quiet_api: Api) -> None:
    informers = Informers(quiet_api)
    absent = informers.informer(Resource("gpuslice.io", "v1alpha1", "absent"), ObjectMetadata, _name)
    absent.expect_served(served=True)
    (watch,) = informers.watches
    async with running(informers.run()):
        await until(lambda: watch._expecting._tries > 1, "it was looked for twice")
        assert absent.served
        assert not absent.synced.is_set()
        absent.expect_served(served=False)
        async with asyncio.timeout(120):
            await absent.synced.wait()
        assert not absent.served


async def test_a_new_kind_is_followed_at_once_while_others_are(quiet_api: Api) -> None:
    informers = Informers(quiet_api)
    async with running(informers.run()):
        namespaces = informers.informer(NAMESPACES, ObjectMetadata, _name)
        async with asyncio.timeout(120):
            await namespaces.synced.wait()
        assert namespaces.store.get("", "default") == "default"
        assert namespaces.age() < 120
    assert Informers(quiet_api).informer(NAMESPACES, ObjectMetadata, _name).age() == float("inf")


class _Numbers(msgspec.Struct):
    """A config map's values are texts, so one that has any cannot be read as this."""

    metadata: Metadata
    data: dict[str, int] | None = None


async def test_a_part_that_fails_breaks_no_other(quiet_api: Api) -> None:
    label = "breaks"

    def fail(*_: object) -> Never:
        raise ValueError("broken")

    informers = Informers(quiet_api)
    registry = CollectorRegistry()
    registry.register(InformerCollector(informers))
    failing: Informer[str] = informers.informer(CONFIG_MAPS, ConfigMap, fail, labels=f"test={label}")
    unreadable = informers.informer(CONFIG_MAPS, _Numbers, lambda _: True, labels=f"test={label}")
    values = _values(informers, label)
    values.store.listen(fail)
    told = Told(values.store)

    def number(name: str) -> float | None:
        return registry.get_sample_value(f"gpuslice_watch_{name}", {"resource": "configmaps"})

    assert [number(name) for name in ("relists_total", "failures_total", "synced", "objects")] == [0, 0, 0, 0]
    assert number("listener_failures_total") == 0
    await _put(quiet_api, label, "breaks-old", "1")
    with structlog.testing.capture_logs() as logged:
        async with running(informers.run()):
            await _put(quiet_api, label, "breaks-new", "2")
            await told.until(lambda store: len(store) == 2)
    assert (len(failing.store), len(unreadable.store)) == (0, 0)
    assert failing.failures == values.store.failures == 2
    assert number("listener_failures_total") == 4
    assert [number(name) for name in ("relists_total", "failures_total", "synced", "objects")] == [1, 0, 1, 2]
    assert {entry["event"] for entry in logged} == {
        "an object is left out: it cannot be made sense of",
        "an object is left out",
        "a listener of a watch failed",
    }


async def test_when_the_server_has_forgotten_all_are_told_the_difference(
    quiet_cluster: Cluster, quiet_api: Api
) -> None:
    label = "forgotten"
    async with Cable(quiet_cluster) as cable, cable.reach() as through:
        informers = Informers(through)
        values, names = _values(informers, label), _names(informers, label)
        told, told_names = Told(values.store), Told(names.store)
        async with running(informers.run()):
            for name in ("same", "changed", "gone"):
                await _put(quiet_api, label, f"{label}-{name}", "1")
            await told.until(lambda store: len(store) == 3)
            await cable.cut()
            await _put(quiet_api, label, f"{label}-changed", "2")
            await quiet_api.delete(CONFIG_MAPS, f"{label}-gone", namespace="default")
            await _put(quiet_api, label, f"{label}-new", "1")
            compact(quiet_cluster)
            await restart_api_server(quiet_cluster)
            await cable.mend()
            await told.until(lambda store: store.get("default", f"{label}-new"))

    changed, gone, new = (("default", f"{label}-{name}") for name in ("changed", "gone", "new"))
    assert sorted(told.changes[3:], key=str) == sorted(
        [(changed, "1", "2"), (gone, "1", None), (new, None, "1")], key=str
    )
    assert sorted(key for key, _, _ in told_names.changes[3:]) == [gone, new]
    assert [watch.relists for watch in informers.watches] == [2]


async def test_a_killed_api_server_is_not_noticed_in_the_stores(quiet_cluster: Cluster, quiet_api: Api) -> None:
    informers = Informers(quiet_api)
    values, names = _values(informers, "restart"), _names(informers, "restart")
    told, told_names = Told(values.store), Told(names.store)
    async with running(informers.run()):
        await _put(quiet_api, "restart", "restart-before", "1")
        await told.until(lambda store: len(store) == 1)
        await restart_api_server(quiet_cluster)
        await _put(quiet_api, "restart", "restart-after", "1")
        await told.until(lambda store: len(store) == 2)
        assert informers.silent(600) == []
    assert len(told.changes) == len(told_names.changes) == 2


async def test_bookmarks_keep_the_version_young_and_the_stores_as_they_are(
    quiet_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server sends one two seconds before it ends a watch, if any object of the kind has changed since it began.
    monkeypatch.setattr("gpuslice.kube.watching._WATCH_SECONDS", (3, 3))
    label, bookmarks = "marked", list[str]()
    informers = Informers(quiet_api)
    values, names = _values(informers, label), _names(informers, label)
    (watch,) = informers.watches
    told, apply = Told(values.store), watch._apply

    def overheard(line: bytes) -> str:
        version = apply(line)
        if b'"BOOKMARK"' in line[:40]:
            bookmarks.append(version)
        return version

    monkeypatch.setattr(watch, "_apply", overheard)
    async with running(informers.run()):
        await _put(quiet_api, label, "marked-one", "1")
        await told.until(lambda store: len(store) == 1)

        async def bookmark_came() -> bool:
            await _put(quiet_api, "another", "marked-other", secrets.token_hex())
            return bool(bookmarks)

        await until(bookmark_came, "a bookmark comes")
        await _put(quiet_api, label, "marked-two", "1")
        await told.until(lambda store: len(store) == 2)
    seen = await quiet_api.get(CONFIG_MAPS, "marked-one", ObjectMetadata, namespace="default")
    assert int(bookmarks[0]) > int(seen.metadata.resource_version)
    assert (len(told.changes), len(names.store)) == (2, 2)
    assert (watch.relists, watch.failures) == (1, 0)


async def test_an_index_follows_the_objects(quiet_api: Api) -> None:
    informers = Informers(quiet_api)
    values = _values(informers, "indexed")
    by_value = values.store.index(lambda _, value: (value,))
    namespaces = values.store.index(by_namespace)
    told = Told(values.store)
    async with running(informers.run()):
        await _put(quiet_api, "indexed", "indexed-one", "x")
        await _put(quiet_api, "indexed", "indexed-two", "x")
        await _put(quiet_api, "indexed", "indexed-two", "x", namespace="kube-system")
        await told.until(lambda store: len(store) == 3)
        assert (by_value.count("x"), namespaces.count("default"), namespaces.count("kube-system")) == (3, 2, 1)
        await _put(quiet_api, "indexed", "indexed-one", "y")
        await told.until(lambda _: "y" in by_value)
        assert by_value.keys("y") == [("default", "indexed-one")]
        assert by_value.count("x") == 2


async def test_ten_thousand_objects_are_all_there_and_stay_in_step(quiet_cluster: Cluster, quiet_api: Api) -> None:
    label, count, connections = "crowded", 10_000, 8

    async def write(part: int) -> None:
        """One call after another on a connection that stays."""
        async with reach(quiet_cluster) as api:
            for number in range(part, count, connections):
                await _put(api, label, f"{label}-{number}", str(number))

    await asyncio.gather(*(write(part) for part in range(connections)))
    informers = Informers(quiet_api)
    values, names = _values(informers, label), _names(informers, label)
    told = Told(values.store)
    async with running(informers.run()):
        await informers.wait_for_sync()
        assert sorted(int(value) for value in values.store.values()) == list(range(count))
        assert len(names.store) == count
        changed = [f"{label}-{number}" for number in range(0, count, 20)]
        for name in changed:
            await quiet_api.merge(CONFIG_MAPS, name, {"data": {"value": "changed"}}, namespace="default")
        await told.until(lambda store: store.values().count("changed") == len(changed))
    assert len(told.changes) == count + len(changed)
    assert [watch.relists for watch in informers.watches] == [1]


async def test_a_kind_that_is_not_served_has_no_objects_until_it_is(
    quiet_cluster: Cluster, quiet_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuslice.kube.watching._ABSENT_SECONDS", 0.1)
    resource = Resource("gpuslice.io", "v1alpha1", "slicepolicies")
    informers, served = Informers(quiet_api), list[bool]()
    policies = informers.informer(resource, ObjectMetadata, _name)
    policies.on_served_changed(lambda: served.append(policies.served))
    told = Told(policies.store)
    async with running(informers.run()):
        await informers.wait_for_sync()
        assert not policies.served

        await asyncio.to_thread(install_policies, quiet_cluster)
        await quiet_api.create(resource, policy("late"))
        await told.until(lambda store: store.get("", "late"))
        assert served == [False, True]

        await asyncio.to_thread(quiet_cluster.kubectl, "delete", "crd", "slicepolicies.gpuslice.io")
        await until(lambda: not policies.served and len(policies.store) == 0)
