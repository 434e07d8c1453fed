"""Shared informers: one list and watch of a kind of object for all parts of a process that need it.

Each part asks for an informer and says what it needs of an object: a struct that names the fields to decode, and a
function that makes of it what is kept. Parts that follow the same objects (resource, namespace, selectors) share one
connection; each has a store of its own, so that nothing is kept which no part needs.

    informers = Informers(api)
    pods = informers.informer(PODS, PodWithClaims, needed_templates)
    by_template = pods.store.index(lambda key, pod: [name for name, _ in pod.recipes])
    pods.store.listen(lambda key, old, new: queue.add(key))
    await informers.run()

A part that asks for an informer while others follow the objects already makes the list be read again, once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gpuslice.kube.decoding import decoder
from gpuslice.kube.resources import HasMetadata, ObjectMetadata
from gpuslice.kube.store import Store
from gpuslice.kube.watching import ListWatch, decode_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.core import Metric

    from gpuslice.kube.client.api import Api
    from gpuslice.kube.resources import Metadata, Resource

ObjectT = TypeVar("ObjectT", bound=HasMetadata)
V = TypeVar("V")


class Informer(Generic[V]):
    """What one part of the process keeps of the objects that it follows."""

    def __init__(
        self, watch: ListWatch, kind: type[Any], project: Callable[[Any], V | None], limit: int | None
    ) -> None:
        self.resource: Final = watch.resource
        self.store: Final[Store[V]] = Store(limit)
        #: Set once everything there is has been seen. Only `list_again` clears it: old knowledge is better than none.
        self.synced: Final = asyncio.Event()
        #: Objects of which `project` could make nothing because it failed.
        self.failures = 0
        self.metadata_only: Final = kind is ObjectMetadata
        self._watch = watch
        self._decode = decoder(kind)
        self._project = project
        self._log = structlog.get_logger().bind(resource=watch.resource.plural)

    @property
    def served(self) -> bool:
        """False while the server does not know the kind at all. That, too, is knowledge: there are no such objects."""
        return self._watch.served

    def expect_served(self, *, served: bool) -> None:
        """By those who know from elsewhere that the kind is served: the server's word that it is not is then no
        knowledge, but a moment that passes.
        """
        self._watch.known_served = served

    def list_again(self) -> None:
        """What is known is of another time. Until everything is listed anew, no informer of these objects is synced."""
        self._watch.list_again()

    def on_served_changed(self, listener: Callable[[], None]) -> None:
        """Calls it when the server has come to know the kind, or does not know it any more."""
        self._watch.served_listeners.append(listener)

    def age(self) -> float:
        """Seconds since the server last spoke of these objects, if only to say that nothing changed: the store is no
        older than that. Infinite before it spoke at all.
        """
        return self._watch.age()

    def heard_within(self, seconds: float) -> bool:
        """Whether the store is no older than that."""
        return self._watch.heard_within(seconds)

    def read(self, document: msgspec.Raw) -> tuple[Metadata, V | None]:
        """The object's metadata, and what is kept of it. An object that cannot be read is left out and logged."""
        try:
            found = self._decode(document)
        except msgspec.ValidationError as error:
            metadata = decode_metadata(document).metadata
            self._log.warning(
                "an object is left out", name=metadata.name, namespace=metadata.namespace, error=str(error)
            )
            return metadata, None
        metadata = found.metadata
        try:
            return metadata, self._project(found)
        except Exception:  # noqa: BLE001 - it must neither stop the watch nor the other informers
            self.failures += 1
            self._log.exception(
                "an object is left out: it cannot be made sense of", name=metadata.name, namespace=metadata.namespace
            )
            return metadata, None


class Informers:
    """All informers of a process."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._watches: dict[tuple[Resource, str, str, str], ListWatch] = {}
        self._tasks: dict[ListWatch, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    def informer(
        self,
        resource: Resource,
        kind: type[ObjectT],
        project: Callable[[ObjectT], V | None],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        limit: int | None = None,
    ) -> Informer[V]:
        """The objects of a kind, each as `project` makes it of what `kind` reads; of one for which it gives None,
        nothing is kept. With ObjectMetadata as the kind, nothing else is asked for.
        """
        key = (resource, namespace, labels, fields)
        watch = self._watches.get(key)
        if watch is None:
            watch = ListWatch(self._api, resource, namespace=namespace, labels=labels, fields=fields)
            self._watches[key] = watch
        informer = Informer(watch, kind, project, limit)
        watch.join(informer)
        if self._group is not None:
            self._start(watch, self._group)
        return informer

    @property
    def watches(self) -> Sequence[ListWatch]:
        return list(self._watches.values())

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for watch in self._watches.values():
                    self._start(watch, group)
                await asyncio.Event().wait()
        finally:
            self._group = None
            self._tasks.clear()

    async def wait_for_sync(self) -> None:
        """Returns once everything there is has been seen by every informer that there is now."""
        for watch in self.watches:
            for informer in list(watch.informers):
                await informer.synced.wait()

    def silent(self, seconds: float) -> list[str]:
        """The resources of which nothing was heard for so long."""
        return sorted({watch.resource.plural for watch in self.watches if not watch.heard_within(seconds)})

    def unlisted(self) -> list[str]:
        """The resources that could not be listed yet, and why. Nothing is listed while the informers do not run."""
        if self._group is None:
            return []
        return sorted(
            {
                f"{watch.resource.plural} cannot be listed: {watch.complaint}"
                for watch in self.watches
                if watch.complaint and not watch.synced.is_set()
            }
        )

    def failing(self) -> list[str]:
        """The resources of which a listener failed when it was last told something: what it knows may be wrong."""
        return sorted(
            {watch.resource.plural for watch in self.watches for each in watch.informers if each.store.failing}
        )

    def _start(self, watch: ListWatch, group: asyncio.TaskGroup) -> None:
        if (running := self._tasks.get(watch)) is not None:
            running.cancel()  # it never takes another step that changes a store: the new one lists everything
        self._tasks[watch] = group.create_task(watch.run(), name=f"watch-{watch.resource.plural}")


class InformerCollector(Collector):
    """The metrics of a process's informers, by resource."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        by_resource: dict[str, list[ListWatch]] = {}
        for watch in self._informers.watches:
            by_resource.setdefault(watch.resource.plural, []).append(watch)
        label = ["resource"]
        relists = CounterMetricFamily("gpuslice_watch_relists", "Times that all was listed.", labels=label)
        failures = CounterMetricFamily("gpuslice_watch_failures", "Failures of a watch.", labels=label)
        listeners = CounterMetricFamily(
            "gpuslice_watch_listener_failures", "Failures of those who listen to a watch.", labels=label
        )
        synced = GaugeMetricFamily("gpuslice_watch_synced", "1 once all objects were seen.", labels=label)
        objects = GaugeMetricFamily("gpuslice_watch_objects", "Objects that are kept.", labels=label)
        for resource, watches in by_resource.items():
            informers = [informer for watch in watches for informer in list(watch.informers)]
            relists.add_metric([resource], sum(watch.relists for watch in watches))
            failures.add_metric([resource], sum(watch.failures for watch in watches))
            listeners.add_metric([resource], sum(each.failures + each.store.failures for each in informers))
            synced.add_metric([resource], int(all(each.synced.is_set() for each in informers)))
            objects.add_metric([resource], sum(len(each.store) for each in informers))
        yield from (relists, failures, listeners, synced, objects)
