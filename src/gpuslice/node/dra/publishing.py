"""Keeps the node's ResourceSlices in the API server as they should be: made, changed, repaired.

What has to be done is worked out from a fresh list each time (`plan`, which is pure); the watch only tells when to
look. The slices of a pool carry a generation and their number, by which the scheduler knows a pool that is complete:
more than one change at a time is therefore a new generation, and a pool in between is not allocated from.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import structlog

from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import NODES, RESOURCE_SLICES, Metadata, ObjectMetadata
from gpuslice.model.devices import DRIVER, pool_name
from gpuslice.node.dra import resource_slices
from gpuslice.node.dra.resource_slices import SliceContent, slice_name
from gpuslice.system.supervised.backoff import Backoff
from gpuslice.system.supervised.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.kube.client.api import Api
    from gpuslice.node.gpus.gpu_state import GpuState
    from gpuslice.node.gpus.policies import GpuPolicies


class StoredSlice(msgspec.Struct, frozen=True):
    """A ResourceSlice as the API server has it."""

    metadata: Metadata
    spec: dict[str, Any]

    @property
    def generation(self) -> int:
        return int(self.spec["pool"]["generation"])

    @property
    def content(self) -> dict[str, Any]:
        """What the slice says, without what the API server added to it."""
        content: dict[str, Any] = {key: self.spec[key] for key in ("devices", "sharedCounters") if key in self.spec}
        if "devices" in content:
            content["devices"] = [_without_times(device) for device in content["devices"]]
        return content


class _Slices(msgspec.Struct):
    items: list[StoredSlice]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order: first what is not true any more goes away."""

    delete: tuple[StoredSlice, ...] = ()
    #: The slice that is there, and the spec that it gets.
    replace: tuple[tuple[StoredSlice, dict[str, Any]], ...] = ()
    #: A name, and the spec of what gets it.
    create: tuple[tuple[str, dict[str, Any]], ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.delete or self.replace or self.create)


def plan(node: str, stored: Sequence[StoredSlice], wanted: Sequence[SliceContent]) -> Plan:
    """How to get from what is there to what should be."""
    names = {slice_name(node, each.suffix): each for each in wanted}
    there = {each.metadata.name: each for each in stored}
    generation = max((each.generation for each in stored), default=1)
    for attempt in (generation, generation + 1):
        specs = {name: _spec(node, each, attempt, len(wanted)) for name, each in names.items()}
        found = Plan(
            delete=tuple(each for name, each in there.items() if name not in names),
            replace=tuple(
                (there[name], _with_times(spec, there[name]))
                for name, spec in specs.items()
                if name in there and _differs(there[name], spec)
            ),
            create=tuple((name, spec) for name, spec in specs.items() if name not in there),
        )
        if len(found.replace) + len(found.create) <= 1:
            break  # a single call is seen whole or not at all
    return found


def _spec(node: str, slice_: SliceContent, generation: int, count: int) -> dict[str, Any]:
    pool = {"name": pool_name(node), "generation": generation, "resourceSliceCount": count}
    return {"driver": DRIVER, "nodeName": node, "pool": pool, **slice_.content}


def _differs(stored: StoredSlice, spec: dict[str, Any]) -> bool:
    content = {key: value for key, value in spec.items() if key in ("devices", "sharedCounters")}
    return stored.spec["pool"] != spec["pool"] or stored.content != content


def _without_times(device: dict[str, Any]) -> dict[str, Any]:
    if "taints" not in device:
        return device
    taints = [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in device["taints"]]
    return device | {"taints": taints}


def _with_times(spec: dict[str, Any], stored: StoredSlice) -> dict[str, Any]:
    """A taint that stays keeps its time: by that, pods that tolerate it for a while are evicted."""
    times = {
        (device["name"], taint["key"], taint.get("value"), taint["effect"]): taint["timeAdded"]
        for device in stored.spec.get("devices", ())
        for taint in device.get("taints", ())
        if "timeAdded" in taint
    }
    if not times or "devices" not in spec:
        return spec

    def timed(device: dict[str, Any], taint: dict[str, Any]) -> dict[str, Any]:
        time = times.get((device["name"], taint["key"], taint.get("value"), taint["effect"]))
        return taint if time is None else taint | {"timeAdded": time}

    return spec | {
        "devices": [
            device | {"taints": [timed(device, taint) for taint in device["taints"]]} if "taints" in device else device
            for device in spec["devices"]
        ]
    }


class Publisher:
    """The slices of one node. `publish` says what they should be, `run` sees to it."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._wanted: Sequence[SliceContent] | None = None
        self._look = asyncio.Event()
        self._done = asyncio.Event()
        self._log = structlog.get_logger().bind(node=node)
        selector = f"spec.nodeName={node},spec.driver={DRIVER}"
        self._selector = {"fieldSelector": selector}
        self._informers = Informers(api)
        published = self._informers.informer(RESOURCE_SLICES, ObjectMetadata, _version, fields=selector)
        published.store.listen(lambda *_: self._look.set())

    def publish(self, wanted: Sequence[SliceContent]) -> None:
        """From now on the node's slices are these."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._done.clear()
            self._look.set()

    async def published(self) -> None:
        """Returns once what was given to `publish` last is in the API server."""
        await self._done.wait()

    async def run(self) -> None:
        """Until it is cancelled."""
        self._look.set()  # it may have failed before, between being told to look and having looked
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informers.run())
            await self._reconcile_when_told()

    async def _reconcile_when_told(self) -> NoReturn:
        backoff = Backoff()
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self.reconcile()
                backoff.reset()
            except (ApiError, UnreachableError) as error:
                self._log.warning("the node's GPUs are not published yet; trying again", error=str(error))
                await backoff.wait()
                self._look.set()

    async def reconcile(self) -> None:
        """Looks once, and does what has to be done."""
        if (wanted := self._wanted) is None:
            return
        found = plan(self._node, await self._list(), wanted)
        if not found.empty:
            await self._carry_out(found)
            self._log.info(
                "published the node's GPUs",
                created=len(found.create),
                changed=len(found.replace),
                removed=len(found.delete),
            )
        if wanted is self._wanted:
            self._done.set()

    async def remove(self) -> None:
        """Takes the node's slices out of the API server: for a node that leaves, not for a restart."""
        for stored in await self._list():
            await self._delete(stored)

    async def _list(self) -> list[StoredSlice]:
        answer = await self._api.call("GET", RESOURCE_SLICES.path(), parameters=self._selector)
        return msgspec.json.decode(answer, type=_Slices).items

    async def _carry_out(self, found: Plan) -> None:
        for stored in found.delete:
            await self._delete(stored)
        if not (found.replace or found.create):
            return
        owner = await self._owner()
        for stored, spec in found.replace:
            document = _document(stored.metadata.name, spec, owner)
            document["metadata"]["resourceVersion"] = stored.metadata.resource_version
            await self._api.replace(RESOURCE_SLICES, stored.metadata.name, document)
        for name, spec in found.create:
            await self._api.create(RESOURCE_SLICES, _document(name, spec, owner))

    async def _delete(self, stored: StoredSlice) -> None:
        try:
            await self._api.delete(RESOURCE_SLICES, stored.metadata.name, preconditions={"uid": stored.metadata.uid})
        except ApiError as error:
            if not error.not_found:
                raise

    async def _owner(self) -> dict[str, Any]:
        """The slices go when the node does."""
        node = await self._api.get(NODES, self._node, ObjectMetadata)
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid, "controller": True}


class GpuPublication:
    """A listener of the GPU watcher: what it sees becomes what is published."""

    def __init__(self, publisher: Publisher, policies: GpuPolicies) -> None:
        self._publisher = publisher
        self._policies = policies
        self._published: Sequence[GpuState] | None = None

    async def gpus_observed(self, states: Sequence[GpuState]) -> None:
        if states != self._published:
            wanted = await in_thread(lambda: resource_slices.build(states, self._policies), "resource-slices")
            self._publisher.publish(wanted)
            self._published = states


def _document(name: str, spec: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "gpuslice"},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _version(stored: ObjectMetadata) -> str:
    return stored.metadata.resource_version
