"""Finds other programs that offer this node's GPUs, as NVIDIA's device plugin or DRA driver do, and tells.

Their devices and ours are the same GPUs, counted twice: the scheduler gives each to two pods. Which of the two is too
many only the node's owner knows, so the agent goes on and says so: in its log, as an event on the node, in its metrics,
and by not being ready.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuslice.kube.errors import ApiError, UnreachableError
from gpuslice.kube.events import Recorder, Regarding
from gpuslice.kube.resources import NODES
from gpuslice.model.devices import WHOLE_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from gpuslice.kube.client.api import Api
    from gpuslice.system.supervised.health import Part

_LOOK_SECONDS: Final = 60.0
#: All of NVIDIA's names for GPUs and partitions, as those of its device plugin.
_DOMAIN: Final = WHOLE_RESOURCE.partition("/")[0] + "/"
_NVIDIA_DRIVER: Final = "gpu.nvidia.com"


class _Status(msgspec.Struct):
    allocatable: dict[str, str] = {}


class _Node(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


def rivals(allocatable: Mapping[str, str], own: Collection[str], others: Collection[str]) -> dict[str, int]:
    """How many devices of which resources are GPUs that we do not offer. `others` are in the domain and no GPUs."""
    return {
        name: int(amount)
        for name, amount in sorted(allocatable.items())
        if name.startswith(_DOMAIN) and name not in own and name not in others and amount.isdecimal() and int(amount)
    }


class RivalPlugins(Collector):
    """Looks at what the kubelet has told of this node, and at which drivers are registered with it."""

    def __init__(
        self,
        api: Api,
        node: str,
        kubelet_folder: Path,
        recorder: Recorder,
        *,
        own: Callable[[], Awaitable[Collection[str]]],
        others: Collection[str],
    ) -> None:
        self._api = api
        self._node = node
        self._driver_socket = kubelet_folder / "plugins_registry" / f"{_NVIDIA_DRIVER}-reg.sock"
        self._recorder = recorder
        self._own = own
        self._others = others
        # The node's own name is its UID here, as the kubelet does it: `kubectl describe node` looks for that.
        self._regarding = Regarding(api_version="v1", kind="Node", name=node, uid=node)
        #: By resource or driver: how many devices, as far as that is known.
        self.found: dict[str, int] = {}
        self._log = structlog.get_logger().bind(node=node)

    async def run(self, health: Part) -> None:
        """Until it is cancelled. Nothing is wrong with a part that has not found anything yet."""
        health.ready()
        while True:
            try:
                await self._look()
            except (ApiError, UnreachableError) as error:
                self._log.debug("whether others offer this node's GPUs is not known", error=str(error))
            health.ill(self.complaint()) if self.found else health.ready()
            await asyncio.sleep(_LOOK_SECONDS)

    def complaint(self) -> str:
        listed = ", ".join(self.found)
        return (
            f"the node's GPUs are promised twice: another program offers them as {listed}; remove it from this node, "
            "or gpuslice's agent"
        )

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        metric = GaugeMetricFamily(
            "gpuslice_rival_devices",
            "Devices of this node's GPUs that another program offers to the kubelet: they are promised twice.",
            labels=("resource",),
        )
        for name, count in self.found.items():
            metric.add_metric((name,), count)
        yield metric

    async def _look(self) -> None:
        own = await self._own()
        node = await self._api.get(NODES, self._node, _Node)
        found = rivals(node.status.allocatable, own, self._others)
        if self._driver_socket.exists():
            found[_NVIDIA_DRIVER] = 1
        if found.keys() != self.found.keys():
            self.found = found
            self._tell()
        self.found = found

    def _tell(self) -> None:
        if self.found:
            self._log.warning(self.complaint())
            self._recorder.record(self._regarding, "Warning", "GPUsPromisedTwice", "LookForPlugins", self.complaint())
        else:
            self._log.info("no other program offers this node's GPUs any more")
