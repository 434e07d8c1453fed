"""A real control plane with nodes that exist only as objects: kwok keeps them ready and renews their leases.

kwok is told of nodes alone, not of pods: scheduling needs no more, and the cores are for what is measured. The
scheduler is started by the benchmark that measures it, when there is work for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import uuid
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from bench import servers
from gpuslice.installing import parts
from gpuslice.installing.options import Options
from gpuslice.kube.client import api
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import NODES, Metadata
from gpuslice.model import devices
from gpuslice.model.gpus import PRESETS
from gpuslice.node.dra.publishing import Publisher
from gpuslice.node.dra.resource_slices import build
from gpuslice.node.gpus.gpu_state import GpuState
from gpuslice.node.gpus.hardware import Gpu
from gpuslice_cluster import control_plane
from gpuslice_cluster.binaries import program
from gpuslice_cluster.clusters import Cluster, new_layout
from tools.kube.__main__ import build as build_programs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from gpuslice.kube.client.api import Api
    from gpuslice.node.gpus.policies import GpuPolicies
    from gpuslice_cluster.components import Component

T = TypeVar("T")

#: The resource of the baseline: what any device plugin would offer.
PLAIN_RESOURCE: Final = "example.com/gpu"
MODEL: Final = PRESETS["A100-40GB"]
_SCHEDULER: Final = "kube-scheduler"
_CONTROLLERS: Final = "kube-controller-manager"
#: Calls that are under way at a time. Each has a connection of its own.
_WORKERS: Final = 8
_SECONDS_TO_BE_READY: Final = 60.0
#: Without this the controllers make 20 calls a second and the scheduler 50, and nothing else would be measured.
_UNTHROTTLED: Final = ("--kube-api-qps=5000", "--kube-api-burst=5000")

#: What kwok does with a node: makes it ready once. The leases say from then on that it is alive.
_STAGE: Final = {
    "apiVersion": "kwok.x-k8s.io/v1alpha1",
    "kind": "Stage",
    "metadata": {"name": "node-ready"},
    "spec": {
        "resourceRef": {"apiGroup": "v1", "kind": "Node"},
        "selector": {
            "matchExpressions": [
                {
                    "key": '.status.conditions.[] | select( .type == "Ready" ) | .status',
                    "operator": "NotIn",
                    "values": ["True"],
                }
            ]
        },
        "next": {
            "statusTemplate": 'conditions: [{type: Ready, status: "True", reason: KubeletReady, message: kwok, '
            "lastHeartbeatTime: {{ Now | Quote }}, lastTransitionTime: {{ Now | Quote }}}]"
        },
    },
}


class _Spec(msgspec.Struct, frozen=True):
    taints: list[dict[str, Any]] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _Spec


@dataclass(frozen=True)
class Fleet:
    """A cluster, and its scheduler that is not running yet."""

    cluster: Cluster
    scheduler: Component

    def connect(self) -> Api:
        return api.connect(self.cluster.kubeconfig, {}, "bench")

    def processor_seconds(self) -> dict[str, float]:
        """By component, since it was started."""
        return {state.name: servers.processor_seconds(state.pid) for state in self.cluster.states() if state.pid}

    async def each(self, items: Iterable[T], work: Callable[[Api, T], Awaitable[None]]) -> None:
        """Does this with all of them, several at a time."""
        left = iter(items)

        async def worker() -> None:
            async with self.connect() as connection:
                for item in left:
                    await work(connection, item)

        async with asyncio.TaskGroup() as group:
            for _ in range(_WORKERS):
                group.create_task(worker())

    async def add_nodes(self, count: int, gpus: int) -> None:
        """Returns when all are ready, and pods may be put on them."""
        amounts = {"cpu": "512", "memory": "8Ti", "pods": "500"}
        amounts |= {name: str(gpus * devices.SLOTS_PER_GPU) for name in (PLAIN_RESOURCE, devices.SHARED_RESOURCE)}

        async def add(connection: Api, number: int) -> None:
            metadata = {"name": node_name(number), "labels": {"kubernetes.io/hostname": node_name(number)}}
            status = {"capacity": amounts, "allocatable": amounts}
            document = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
            await connection.create(NODES, document)

        await self.each(range(count), add)
        ready = asyncio.Event()
        async with self.connect() as connection, asyncio.timeout(_SECONDS_TO_BE_READY):
            informers = Informers(connection)
            nodes = informers.informer(NODES, _Node, lambda node: not node.spec.taints)
            nodes.store.listen(lambda *_: ready.set() if sum(nodes.store.values()) == count else None)
            async with following(informers):
                await ready.wait()

    async def publish_gpus(self, nodes: int, gpus: int, policies: GpuPolicies) -> int:
        """As the agent of each node does. Returns how many devices a node has."""
        slices = build([GpuState(gpu=_gpu(index)) for index in range(gpus)], policies)

        async def publish(connection: Api, number: int) -> None:
            publisher = Publisher(connection, node_name(number))
            publisher.publish(slices)
            await publisher.reconcile()

        await self.each(range(nodes), publish)
        return sum(len(each.content.get("devices", ())) for each in slices)

    @contextmanager
    def scheduling(self) -> Iterator[int]:
        """Runs the scheduler; its process number."""
        with _process(self.scheduler.arguments, self.cluster.folder / "scheduler.log") as process:
            yield process.pid


def node_name(number: int) -> str:
    return f"node-{number:04}"


def _gpu(index: int) -> Gpu:
    """The same on every node: names need to differ within a node only."""
    return Gpu(
        index=index,
        uuid=f"GPU-{uuid.UUID(int=(index + 1) << 96)}",
        product=MODEL.product,
        memory_bytes=MODEL.memory_bytes,
        architecture=MODEL.architecture.name.title(),
        driver_version="610.43.2",
        cuda_version="13.4.0",
        pci_bus_id=f"0000:{index + 7:02x}:00.0",
        mig_profiles=MODEL.mig_profiles,
    )


@contextmanager
def running(*, throttled: bool) -> Iterator[Fleet]:
    """A fresh one. `throttled` leaves the controllers and the scheduler with Kubernetes' own limits for their calls."""
    build_programs(("etcd", "kubernetes", "kwok"))
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench.") as work, ExitStack() as stack:
        layout = new_layout(Path(work))
        cluster = Cluster(layout.folder)
        plan = {
            component.name: component
            if throttled or component.name not in (_SCHEDULER, _CONTROLLERS)
            else msgspec.structs.replace(component, arguments=(*component.arguments, *_UNTHROTTLED))
            for component in control_plane.plan(layout)
        }
        scheduler = plan.pop(_SCHEDULER)
        cluster.start(tuple(plan.values()), owner=os.getpid())
        stack.callback(cluster.stop)
        classes = {"apiVersion": "v1", "kind": "List", "items": parts.objects(Options(), ["classes"])}
        cluster.kubectl("create", "-f", "-", input=json.dumps(classes))
        configuration = layout.folder / "kwok.yaml"
        configuration.write_text(json.dumps(_STAGE))
        kwok = (
            *(str(program("kwok")), f"--kubeconfig={cluster.kubeconfig}", f"--config={configuration}"),
            *("--manage-all-nodes=true", "--server-address="),
        )
        stack.enter_context(_process(kwok, layout.folder / "kwok.log"))
        yield Fleet(cluster, scheduler)


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
        if process.poll() is not None:
            raise SystemExit(f"error: {command[0]} ended:\n{log.read_text()[-2000:]}")
    finally:
        process.terminate()
        process.wait()


@asynccontextmanager
async def following(informers: Informers) -> AsyncIterator[None]:
    """The informers run inside, and know everything there is at the beginning."""
    task = asyncio.create_task(informers.run())
    try:
        await informers.wait_for_sync()
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
