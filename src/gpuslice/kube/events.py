"""Events (events.k8s.io/v1): what people see with `kubectl get events` and `kubectl describe`.

The first of its kind is written at once; repeats are counted and told as one series now and then, so that a loop in
a cluster does not become a flood. Recording never waits and never fails: events are a courtesy.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.resources import EVENTS
from gpuslice.system import timestamps

if TYPE_CHECKING:
    from gpuslice.kube.client.api import Api

_LONGEST_NOTE: Final = 1000  # bytes; the API server's limit is 1 KiB
_MOST_KINDS: Final = 1024
_MOST_WAITING: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Regarding:
    """The object that an event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    def reference(self) -> dict[str, str]:
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
        }
        return {key: text for key, text in fields.items() if text}


@dataclass(frozen=True, slots=True)
class _Kind:
    """What makes two events the same."""

    regarding: Regarding
    type: str
    reason: str
    action: str
    note: str


@dataclass(slots=True)
class _Series:
    """The event that stands for all of a kind, and how often it was told."""

    name: str
    written: bool = False
    count: int = 1
    told: int = 1


class Recorder:
    """Records events in the name of a component. `run` writes them."""

    def __init__(self, api: Api, controller: str, instance: str, *, series_seconds: float = 60.0) -> None:
        self.dropped = 0
        self._api = api
        self._controller = controller
        self._instance = instance[:128]
        self._series_seconds = series_seconds
        self._kinds: OrderedDict[_Kind, _Series] = OrderedDict()
        self._waiting: asyncio.Queue[_Kind] = asyncio.Queue(_MOST_WAITING)
        self._log = structlog.get_logger()

    def record(
        self, regarding: Regarding, type_: Literal["Normal", "Warning"], reason: str, action: str, note: str
    ) -> None:
        """`reason` and `action` are words for machines (`PolicyRefused`, `Admit`), `note` is for people."""
        kind = _Kind(regarding, type_, reason, action, _shorten(note))
        series = self._kinds.get(kind)
        if series is not None:
            series.count += 1
            self._kinds.move_to_end(kind)
            return
        if self._waiting.full():
            self.dropped += 1
            return
        self._kinds[kind] = _Series(f"{regarding.name[:200]}.{secrets.token_hex(8)}")
        self._waiting.put_nowait(kind)
        while len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell_series())
            while True:
                await self._write(await self._waiting.get())

    async def flush(self) -> None:
        """Writes what waits, and the repeats so far."""
        while not self._waiting.empty():
            await self._write(self._waiting.get_nowait())
        await self._tell_repeats()

    async def _tell_series(self) -> None:
        while True:
            await asyncio.sleep(self._series_seconds)
            await self._tell_repeats()

    async def _tell_repeats(self) -> None:
        for kind, series in list(self._kinds.items()):
            if not series.written:
                continue
            if series.count == series.told:
                # Quiet for a while: what comes later is a new event.
                self._kinds.pop(kind, None)
                continue
            count = series.count
            changes = {"series": {"count": count, "lastObservedTime": timestamps.micro_time()}}
            namespace = kind.regarding.namespace or "default"
            try:
                await self._api.merge(EVENTS, series.name, changes, namespace=namespace)
                series.told = count
            except (ApiError, UnreachableError) as error:
                self._kinds.pop(kind, None)
                self._log.debug("a series of events is not told", reason=kind.reason, error=str(error))

    async def _write(self, kind: _Kind) -> None:
        series = self._kinds.get(kind)
        if series is None:
            return
        namespace = kind.regarding.namespace or "default"
        try:
            await self._api.create(EVENTS, self._document(kind, series.name, namespace), namespace=namespace)
            series.written = True
        except (ApiError, UnreachableError) as error:
            self.dropped += 1
            self._kinds.pop(kind, None)
            self._log.debug("an event is not written", reason=kind.reason, error=str(error))

    def _document(self, kind: _Kind, name: str, namespace: str) -> dict[str, Any]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": timestamps.micro_time(),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": kind.action,
            "reason": kind.reason,
            "regarding": kind.regarding.reference(),
            "note": kind.note,
            "type": kind.type,
        }


def _shorten(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _LONGEST_NOTE:
        return note
    return encoded[: _LONGEST_NOTE - 3].decode(errors="ignore") + "..."
