"""A watch is in step with the API server whatever happens to either: no change is lost or told twice."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pytest

from gpuslice.kube.errors import ApiError
from gpuslice.kube.informers import Informer
from gpuslice.kube.listing import pages
from gpuslice.kube.resources import NAMESPACES, Metadata, ObjectMetadata, Resource
from gpuslice.kube.watching import ListWatch
from gpuslice.system.supervised.backoff import Backoff
from tests.cluster.kube.support import (
    CONFIG_MAPS,
    Cable,
    ConfigMap,
    Told,
    all_of,
    compact,
    config_map,
    install_policies,
    policy,
    restart_api_server,
    running,
)
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

V = TypeVar("V")


def _labelled(api: Api, label: str) -> ListWatch:
    return ListWatch(api, CONFIG_MAPS, namespace="", labels=f"test={label}", fields="")


def _watch(api: Api, label: str) -> tuple[ListWatch, Informer[str]]:
    """The values of one test's config maps."""
    watch = _labelled(api, label)
    return watch, _joined(watch, ConfigMap, lambda found: (found.data or {}).get("value"))


def _joined(
    watch: ListWatch, kind: type[Any], project: Callable[[Any], V | None], limit: int | None = None
) -> Informer[V]:
    informer = Informer(watch, kind, project, limit)
    watch.join(informer)
    return informer


async def _put(api: Api, label: str, name: str, value: str) -> None:
    document = config_map(name, value=value)
    document["metadata"]["labels"] = {"test": label}
    try:
        await api.create(CONFIG_MAPS, document, namespace="default")
    except ApiError as error:
        if not error.conflict:
            raise
        await api.merge(CONFIG_MAPS, name, {"data": {"value": value}}, namespace="default")


async def test_the_store_follows_what_happens(quiet_api: Api) -> None:
    await _put(quiet_api, "follows", "follows-old", "1")
    watch, informer = _watch(quiet_api, "follows")
    told = Told(informer.store)
    async with running(watch.run()):
        await informer.synced.wait()
        assert informer.store.get("default", "follows-old") == "1"

        await _put(quiet_api, "follows", "follows-new", "2")
        await _put(quiet_api, "follows", "follows-old", "3")
        await quiet_api.delete(CONFIG_MAPS, "follows-new", namespace="default")
        await told.until(lambda store: len(store) == 1 and store.get("default", "follows-old") == "3")

    old, new = ("default", "follows-old"), ("default", "follows-new")
    assert told.changes == [(old, None, "1"), (new, None, "2"), (old, "1", "3"), (new, "2", None)]


async def test_an_object_that_is_not_wanted_any_more_leaves_the_store(quiet_api: Api) -> None:
    await _put(quiet_api, "leaves", "leaves-label", "1")
    await _put(quiet_api, "leaves", "leaves-projection", "1")
    watch, informer = _watch(quiet_api, "leaves")
    told = Told(informer.store)
    async with running(watch.run()):
        await told.until(lambda store: len(store) == 2)
        changes = {"metadata": {"labels": {"test": "another"}}}
        await quiet_api.merge(CONFIG_MAPS, "leaves-label", changes, namespace="default")
        await quiet_api.merge(CONFIG_MAPS, "leaves-projection", {"data": {"value": None}}, namespace="default")

        await told.until(lambda store: len(store) == 0)


async def test_a_broken_connection_is_followed_on_from_where_it_broke(quiet_cluster: Cluster, quiet_api: Api) -> None:
    async with Cable(quiet_cluster) as cable, cable.reach() as through:
        watch, informer = _watch(through, "broken")
        told = Told(informer.store)
        async with running(watch.run()):
            await _put(quiet_api, "broken", "broken-kept", "1")
            await _put(quiet_api, "broken", "broken-gone", "1")
            await told.until(lambda store: len(store) == 2)
            await cable.cut()
            await _put(quiet_api, "broken", "broken-kept", "2")
            await quiet_api.delete(CONFIG_MAPS, "broken-gone", namespace="default")
            await _put(quiet_api, "broken", "broken-new", "1")
            await cable.mend()
            await told.until(lambda store: store.get("default", "broken-new"))

    kept, gone, new = (("default", f"broken-{name}") for name in ("kept", "gone", "new"))
    assert told.changes[2:] == [(kept, "1", "2"), (gone, "1", None), (new, None, "1")]
    assert watch.relists == 1


async def test_a_bookmark_moves_the_version_and_nothing_else(quiet_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server sends one two seconds before it ends a watch, if any object of the kind has changed since it began.
    monkeypatch.setattr("gpuslice.kube.watching._WATCH_SECONDS", (3, 3))
    watch, informer = _watch(quiet_api, "bookmark")
    told, bookmarks = Told(informer.store), []
    apply = watch._apply

    def overheard(line: bytes) -> str:
        version = apply(line)
        if b'"BOOKMARK"' in line[:40]:
            bookmarks.append(version)
        return version

    monkeypatch.setattr(watch, "_apply", overheard)
    async with running(watch.run()):
        await _put(quiet_api, "bookmark", "bookmark-one", "1")
        await told.until(lambda store: len(store) == 1)

        async def bookmark_came() -> bool:
            await _put(quiet_api, "another", "bookmark-other", secrets.token_hex())
            return bool(bookmarks)

        await until(bookmark_came, "a bookmark comes")
        await _put(quiet_api, "bookmark", "bookmark-two", "1")
        await told.until(lambda store: len(store) == 2)

    seen = await quiet_api.get(CONFIG_MAPS, "bookmark-one", ObjectMetadata, namespace="default")
    assert int(bookmarks[0]) > int(seen.metadata.resource_version)
    assert len(told.changes) == 2
    assert (watch.relists, watch.failures) == (1, 0)


async def test_when_the_server_has_forgotten_everything_is_listed_again_and_told_as_changes(
    quiet_cluster: Cluster, quiet_api: Api
) -> None:
    async with Cable(quiet_cluster) as cable, cable.reach() as through:
        watch, informer = _watch(through, "forgot")
        told = Told(informer.store)
        async with running(watch.run()):
            for name in ("same", "changed", "gone"):
                await _put(quiet_api, "forgot", f"forgot-{name}", "1")
            await told.until(lambda store: len(store) == 3)
            await cable.cut()
            await _put(quiet_api, "forgot", "forgot-changed", "2")
            await quiet_api.delete(CONFIG_MAPS, "forgot-gone", namespace="default")
            await _put(quiet_api, "forgot", "forgot-new", "1")
            compact(quiet_cluster)
            await restart_api_server(quiet_cluster)
            await cable.mend()
            await told.until(lambda store: store.get("default", "forgot-new"))

    changed, gone, new = (("default", f"forgot-{name}") for name in ("changed", "gone", "new"))
    assert sorted(told.changes[3:], key=str) == sorted(
        [(changed, "1", "2"), (gone, "1", None), (new, None, "1")], key=str
    )
    assert watch.relists == 2


async def test_a_version_that_the_server_has_forgotten_is_told_as_expired(
    quiet_cluster: Cluster, quiet_api: Api
) -> None:
    await _put(quiet_api, "expired", "expired", "1")
    version = (await quiet_api.get(CONFIG_MAPS, "expired", ObjectMetadata, namespace="default")).metadata
    await _put(quiet_api, "expired", "expired", "2")
    compact(quiet_cluster)
    await restart_api_server(quiet_cluster)

    with pytest.raises(ApiError) as refusal:
        await _labelled(quiet_api, "expired")._follow(version.resource_version, Backoff())
    assert refusal.value.expired


async def test_a_killed_api_server_is_not_noticed_in_the_store(quiet_cluster: Cluster, quiet_api: Api) -> None:
    watch, informer = _watch(quiet_api, "killed")
    told = Told(informer.store)
    async with running(watch.run()):
        await _put(quiet_api, "killed", "killed-before", "1")
        await told.until(lambda store: len(store) == 1)
        await restart_api_server(quiet_cluster)
        await _put(quiet_api, "killed", "killed-after", "1")
        await told.until(lambda store: len(store) == 2)

    assert told.changes == [(("default", "killed-before"), None, "1"), (("default", "killed-after"), None, "1")]


async def test_text_that_python_takes_for_the_end_of_a_line_breaks_nothing(quiet_api: Api) -> None:
    watch, informer = _watch(quiet_api, "lines")
    told = Told(informer.store)
    async with running(watch.run()):
        await informer.synced.wait()
        await _put(quiet_api, "lines", "lines", "one\x85two\u2028three\u2029four\x0bfive")

        await told.until(lambda store: len(store) == 1)
    assert informer.store.get("default", "lines") == "one\x85two\u2028three\u2029four\x0bfive"
    assert (watch.relists, watch.failures) == (1, 0)


class _Numbers(msgspec.Struct):
    """A config map's values are texts, so one that has any cannot be read as this."""

    metadata: Metadata
    data: dict[str, int] | None = None


@pytest.mark.parametrize("when", ["listed", "watched"])
async def test_an_object_that_cannot_be_read_is_left_out_and_the_others_are_not(quiet_api: Api, when: str) -> None:
    label = f"bad-{when}"
    watch = _labelled(quiet_api, label)
    informer = _joined(watch, _Numbers, lambda found: found.metadata.name)
    told = Told(informer.store)

    async def fill() -> None:
        await _put(quiet_api, label, f"{label}-unreadable", "text")
        document = config_map(f"{label}-readable")
        document["metadata"]["labels"] = {"test": label}
        await quiet_api.create(CONFIG_MAPS, document, namespace="default")

    if when == "listed":
        await fill()
    async with running(watch.run()):
        await informer.synced.wait()
        if when == "watched":
            await fill()
        await told.until(lambda store: store.get("default", f"{label}-readable"))
    assert list(informer.store) == [("default", f"{label}-readable")]
    assert watch.relists == 1


async def test_more_objects_than_fit_a_page_are_all_there(quiet_api: Api) -> None:
    await all_of(_put(quiet_api, "many", f"many-{number}", str(number)) for number in range(1001))
    watch, informer = _watch(quiet_api, "many")
    async with running(watch.run()):
        await informer.synced.wait()

    assert sorted(int(value) for value in informer.store.values()) == list(range(1001))


async def test_a_list_that_is_forgotten_between_two_pages_begins_again(quiet_cluster: Cluster, quiet_api: Api) -> None:
    await all_of(_put(quiet_api, "paged", f"paged-{number}", "1") for number in range(6))
    listing = pages(quiet_api, CONFIG_MAPS.path(), {"labelSelector": "test=paged"}, size=4)
    first = await anext(listing)
    await quiet_api.delete(CONFIG_MAPS, "paged-0", namespace="default")
    compact(quiet_cluster)
    await restart_api_server(quiet_cluster)
    rest = [page async for page in listing]

    assert (first.first, len(first.items)) == (True, 4)
    assert [(page.first, len(page.items)) for page in rest] == [(True, 5)]


async def test_a_full_store_takes_no_more_until_there_is_room(quiet_api: Api) -> None:
    watch = _labelled(quiet_api, "full")
    informer = _joined(watch, ObjectMetadata, lambda _: True, 2)
    told = Told(informer.store)
    async with running(watch.run()):
        for number in range(3):
            await _put(quiet_api, "full", f"full-{number}", "1")
        await told.until(lambda store: len(store) == 2)
        await quiet_api.delete(CONFIG_MAPS, "full-0", namespace="default")
        await told.until(lambda store: len(store) == 1)
        await _put(quiet_api, "full", "full-2", "2")
        await told.until(lambda store: len(store) == 2)


async def test_only_metadata_is_asked_for_where_only_metadata_is_read(quiet_api: Api) -> None:
    watch = ListWatch(quiet_api, NAMESPACES, namespace="", labels="", fields="")
    informer = _joined(watch, ObjectMetadata, lambda found: found.metadata.labels)
    async with running(watch.run()):
        await informer.synced.wait()

    assert informer.store.get("", "default") == {"kubernetes.io/metadata.name": "default"}


async def test_a_kind_that_is_not_served_has_no_objects_until_it_is(
    quiet_cluster: Cluster, quiet_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuslice.kube.watching._ABSENT_SECONDS", 0.1)
    resource = Resource("gpuslice.io", "v1alpha1", "slicepolicies")
    watch = ListWatch(quiet_api, resource, namespace="", labels="", fields="")
    informer = _joined(watch, ObjectMetadata, lambda found: found.metadata.name)
    served: list[bool] = []
    watch.served_listeners.append(lambda: served.append(watch.served))
    told = Told(informer.store)
    async with running(watch.run()):
        await informer.synced.wait()
        assert not watch.served

        await asyncio.to_thread(install_policies, quiet_cluster)
        await quiet_api.create(resource, policy("late"))
        await told.until(lambda store: store.get("", "late"))
        assert served == [False, True]

        await asyncio.to_thread(quiet_cluster.kubectl, "delete", "crd", "slicepolicies.gpuslice.io")
        await until(lambda: not watch.served and len(informer.store) == 0)
