"""Keeps the stores of informers in step with the API server: a list, then every change to it.

The list is read in pages and the changes are followed from its version on, so nothing falls between the two. When the
connection breaks, it is followed from the last version that was heard of; bookmarks keep that version young where
nothing changes. When the server no longer knows that version (410), or says anything else that is not just "later",
everything is listed again and compared: what is gone is told as gone, what is new as new, and nothing twice.

An object that cannot be read is left out and logged: one bad object never stops the others.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from gpuslice.kube.client import api as calls
from gpuslice.kube.decoding import decoder
from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.listing import pages
from gpuslice.kube.resources import ObjectMetadata
from gpuslice.system.supervised.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informer
    from gpuslice.kube.resources import Metadata, Resource
    from gpuslice.kube.store import Key

#: The server ends a watch after so long; at random, so that the watches of many do not start together again.
_WATCH_SECONDS: Final = (240, 480)
#: Bookmarks come once a minute. A connection that is silent for this long is taken for dead.
SILENCE_SECONDS: Final = 150.0
#: How often to look whether a kind that is not served has come to be: its objects may be in force from then on.
_ABSENT_SECONDS: Final = 1.0
#: The same, at first, when it is known from elsewhere that the kind is served.
_EXPECTED_SECONDS: Final = 0.05


class _Change(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkMetadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _Bookmark(msgspec.Struct):
    """An object of the kind with nothing in it but the version, not even a name."""

    metadata: _BookmarkMetadata


_decode_bookmark: Final = msgspec.json.Decoder(_Bookmark).decode
_decode_change: Final = decoder(_Change)
decode_metadata: Final = decoder(ObjectMetadata)


class ListWatch:
    """One list and watch, for the informers that share it."""

    def __init__(self, api: Api, resource: Resource, *, namespace: str, labels: str, fields: str) -> None:
        self.resource: Final = resource
        self.informers: Final[list[Informer[Any]]] = []
        #: Set once everything there is has been seen. Only `list_again` clears it: old knowledge is better than none.
        self.synced: Final = asyncio.Event()
        #: False while the server does not know the kind at all. That, too, is knowledge: there are no such objects.
        self.served = True
        #: Set by those who know from elsewhere that the kind is served: the server's word that it is not is then no
        #: knowledge, but a moment that passes.
        self.known_served = False
        #: Called when `served` changes.
        self.served_listeners: Final[list[Callable[[], None]]] = []
        self.relists = 0
        self.failures = 0
        self._api = api
        self._path = resource.path(namespace)
        self._accept_list = calls.JSON
        self._accept = calls.JSON
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        self._selectors = {key: text for key, text in selectors.items() if text}
        self._round: asyncio.Task[None] | None = None
        self._expecting = Backoff(_EXPECTED_SECONDS, _ABSENT_SECONDS)
        self._heard = float("-inf")
        self._failing = False
        #: Why the server could not be followed when that was last tried; empty if it could.
        self.complaint = ""
        self._log = structlog.get_logger().bind(resource=resource.plural)

    def join(self, informer: Informer[Any]) -> None:
        """From the next list on."""
        self.informers.append(informer)
        metadata_only = all(each.metadata_only for each in self.informers)
        self._accept_list = calls.METADATA_LIST if metadata_only else calls.JSON
        self._accept = calls.METADATA if metadata_only else calls.JSON

    def age(self) -> float:
        """Seconds since the server last spoke of these objects."""
        return time.monotonic() - self._heard

    def heard_within(self, seconds: float) -> bool:
        """Whether the server has spoken so recently, and so the stores are no older than that."""
        return self.age() <= seconds

    async def run(self) -> None:
        """Until it is cancelled."""
        backoff = Backoff()
        while True:
            self._round = asyncio.create_task(self._list_and_follow(backoff))
            try:
                await self._round
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Only the round was cancelled: by `list_again`.

    def list_again(self) -> None:
        """What is known is of another time. Until everything is listed anew, none of the informers is synced."""
        self._set_synced(synced=False)
        self._expecting.reset()
        if self._round is not None:
            self._round.cancel()

    async def _list_and_follow(self, backoff: Backoff) -> None:
        """Once, until it fails; returns when it is time to try again."""
        try:
            version = await self._list()
            await self._follow(version, backoff)
        except ApiError as error:
            if error.not_found:
                await self._wait_until_served()
                return
            if not error.expired:
                self._failed(error)
            await backoff.wait()
        except (UnreachableError, msgspec.DecodeError, RecursionError) as error:
            self._failed(error)
            await backoff.wait()

    async def _wait_until_served(self) -> None:
        if self.known_served:
            await self._expecting.wait()
            return
        self._absent()
        await asyncio.sleep(_ABSENT_SECONDS)

    async def _list(self) -> str:
        informers = list(self.informers)
        found: list[dict[Key, Any]] = [{} for _ in informers]
        version = ""
        async for page in pages(self._api, self._path, self._selectors, accept=self._accept_list):
            if page.first:
                for values in found:
                    values.clear()
            version = page.version
            for item in page.items:
                for informer, values in zip(informers, found, strict=True):
                    metadata, value = informer.read(item)
                    if value is not None:
                        values[_key_of(metadata)] = value
        for informer, values in zip(informers, found, strict=True):
            informer.store.replace(values)
        self.relists += 1
        self._set_served(served=True)
        self._well()
        self._set_synced(synced=True, informers=informers)
        return version

    async def _follow(self, version: str, backoff: Backoff) -> None:
        """Ends with an error: the server has to be asked for everything again."""
        while True:
            started = time.monotonic()
            try:
                async with self._api.stream(
                    self._path,
                    self._selectors
                    | {
                        "watch": "1",
                        "resourceVersion": version,
                        "allowWatchBookmarks": "true",
                        "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),  # noqa: S311
                    },
                    accept=self._accept,
                    silence_seconds=SILENCE_SECONDS,
                ) as lines:
                    self._well()
                    async for line in lines:
                        version = self._apply(line)
                        self._well()
                        backoff.reset()
            except UnreachableError as error:
                self._failed(error)
                await backoff.wait()
            except ApiError as error:
                if not error.passing:
                    raise
                self._failed(error)
                await backoff.wait()
            else:
                # The server ended it, as it does every few minutes; one that does so at once is not well.
                if time.monotonic() - started < 1:
                    await backoff.wait()

    def _apply(self, line: bytes) -> str:
        """Takes one change into the store and says what version that was."""
        change = _decode_change(line)
        if change.type == "ERROR":
            raise calls.status_error(change.object)
        if change.type == "BOOKMARK":
            return _decode_bookmark(change.object).metadata.resource_version
        gone = change.type == "DELETED"
        for informer in self.informers:
            metadata, value = informer.read(change.object)
            informer.store.put(_key_of(metadata), None if gone else value)
        return metadata.resource_version

    def _well(self) -> None:
        self._heard = time.monotonic()
        self.complaint = ""
        if self._failing:
            self._failing = False
            self._log.info("the API server answers again")

    def _failed(self, error: Exception) -> None:
        """Told once, not with every try."""
        self.failures += 1
        self.complaint = str(error)
        if not self._failing:
            self._failing = True
            self._log.warning("the API server cannot be followed; trying again", error=str(error))

    def _absent(self) -> None:
        if self.served:
            self._log.info("the API server does not serve this resource")
        for informer in self.informers:
            informer.store.replace({})
        self._set_served(served=False)
        self._well()
        self._set_synced(synced=True, informers=self.informers)

    def _set_served(self, *, served: bool) -> None:
        if served == self.served:
            return
        self.served = served
        for listener in self.served_listeners:
            try:
                listener()
            except Exception:  # noqa: BLE001 - it must not stop the watch
                self._log.exception("a listener of a watch failed")

    def _set_synced(self, *, synced: bool, informers: Sequence[Informer[Any]] | None = None) -> None:
        """An informer that joined while the list was read is not synced by it."""
        joined = self.informers if informers is None else informers
        for event in (self.synced, *(informer.synced for informer in joined)):
            event.set() if synced else event.clear()


def _key_of(metadata: Metadata) -> Key:
    # Many objects are in few namespaces.
    return sys.intern(metadata.namespace), metadata.name
