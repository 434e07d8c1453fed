"""Measures whether `gpuslice webhook` costs more because a cluster holds more: 1,000 policies that do not match and
1,000 namespaces, really stored in an API server, against four of each.

There are two API servers, each with a webhook that follows it; they differ in what they hold. The webhooks take turns.
Times are of the webhook's own processor, and the least of several turns: what else the machine does can only add to it.

What must not grow: what a review costs, also of pods that are spread over all namespaces and ask for different slices;
what a change of a namespace costs; what it costs to wait.

What must grow, each object counting as much as the one before it: memory (labels, a policy's rules), and the start,
which reads all of them once. A change of a policy reads that policy alone, but files all rules anew,
some microseconds each; many changes in a row are filed together, and never take more than a tenth of the time.

`python -m bench.growth` shows a table and writes `bench/results/growth.json`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import servers
from bench.admission import hami, policy_documents
from bench.figures import Figure, publish
from bench.reviews import CASTSLICE, review_body
from gpuslice.kube.client import credentials
from gpuslice.kube.client.api import Api
from gpuslice.kube.resources import NAMESPACES
from gpuslice.policies.stored_policies import SLICE_POLICIES
from gpuslice_cluster import control_plane
from gpuslice_cluster.clusters import Cluster, new_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from bench.servers import Certificates, Server
    from gpuslice.kube.resources import Resource

_FEW: Final = 4
_MANY: Final = 1000
_DEFINITION: Final = Path(__file__).resolve().parents[1] / "deploy" / "crds" / "gpuslice.io_slicepolicies.yaml"
_MIB: Final = 1024**2
_AT_A_TIME: Final = 16
_STARTS: Final = 3
_ROUNDS: Final = 3
_REVIEW_ROUNDS: Final = 9
_SECONDS: Final = 1.0
_WARM_UP: Final = 0.3
_CHANGES: Final = 30
#: A webhook takes a change into account after 50 ms.
_SECONDS_PER_CHANGE: Final = 0.15
_IDLE_SECONDS: Final = 10.0
_SECONDS_TO_START: Final = 120.0
#: Nothing may cost more because there is more of it.
_GROWTH: Final = 1.1
#: Where less is measured, and the clock of the kernel is a larger part of it.
_ROUGH_GROWTH: Final = 1.25

_REVIEWS: Final = ("castslice", "hami", "hami, pods of all namespaces and slices")


@dataclass(frozen=True)
class Site:
    """An API server that holds so many of everything, and how to reach it."""

    cluster: Cluster
    count: int

    def reach(self) -> Api:
        return Api(credentials.load(self.cluster.kubeconfig, {}), "bench")


def _namespace(index: int) -> str:
    return f"research-{index}"


async def _fill(site: Site) -> None:
    turns = asyncio.Semaphore(_AT_A_TIME)
    async with site.reach() as api, asyncio.TaskGroup() as group:

        async def create(resource: Resource, document: object, namespace: str = "") -> None:
            async with turns:
                await api.create(resource, document, namespace=namespace)

        async def fill(index: int) -> None:
            name = _namespace(index)
            labels = {"team": "vision", "tier": f"{index}"}
            await create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})

        for index in range(site.count):
            group.create_task(fill(index))
        for document in policy_documents(site.count):
            group.create_task(create(SLICE_POLICIES, document))


@contextmanager
def _site(folder: Path, count: int) -> Iterator[Site]:
    """An API server with nothing behind it that acts by itself."""
    folder.mkdir()
    cluster = Cluster(folder)
    etcd, api_server, *_ = control_plane.plan(new_layout(folder))
    cluster.start((etcd, api_server), owner=os.getpid())
    try:
        cluster.kubectl("apply", "-f", str(_DEFINITION))
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/slicepolicies.gpuslice.io")
        site = Site(cluster, count)
        print(f"==> Filling an API server with {count:,} policies and namespaces", flush=True)
        asyncio.run(_fill(site))
        yield site
    finally:
        cluster.stop()


class Asking:
    """One connection to a webhook."""

    def __init__(self, server: Server, certificates: Certificates) -> None:
        trust = ssl.create_default_context(cafile=str(certificates.authority))
        self._connection = http.client.HTTPSConnection("localhost", server.port, context=trust)

    def ready(self) -> bool:
        self._connection.request("GET", "/readyz")
        with self._connection.getresponse() as response:
            response.read()
            return response.status == http.client.OK

    def review(self, body: bytes) -> None:
        self._connection.request("POST", "/mutate", body, {"Content-Type": "application/json"})
        with self._connection.getresponse() as response:
            answer: dict[str, Any] = json.load(response)
        if "patch" not in answer["response"]:
            raise SystemExit(f"error: a pod is not rewritten: {answer}")

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True)
class Webhook:
    """One that has seen the whole of its API server."""

    site: Site
    server: Server
    asking: Asking

    def processor_seconds(self) -> float:
        """Of all of its threads, to the microsecond; those in /proc/PID/stat are counted in hundredths of a second."""
        tasks = Path(f"/proc/{self.server.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def used(self, work: Callable[[], object]) -> float:
        """The processor time that it used meanwhile."""
        before = self.processor_seconds()
        work()
        return self.processor_seconds() - before


@contextmanager
def _webhook(site: Site, certificates: Certificates) -> Iterator[Webhook]:
    with servers.ours(certificates, f"--kubeconfig={site.cluster.kubeconfig}") as server:
        asking = Asking(server, certificates)
        try:
            deadline = time.monotonic() + _SECONDS_TO_START
            while not asking.ready():
                if time.monotonic() > deadline:
                    raise SystemExit("error: the webhook does not get ready")
                time.sleep(0.005)
            yield Webhook(site, server, asking)
        finally:
            asking.close()


def _start(site: Site, certificates: Certificates) -> tuple[float, float]:
    """How long it takes a webhook to be ready, and how much of that it works."""
    began = time.monotonic()
    with _webhook(site, certificates) as webhook:
        return time.monotonic() - began, webhook.processor_seconds()


def _bodies(name: str, site: Site) -> list[bytes]:
    """In few namespaces and of few slices, but for the last: there in all namespaces that there are."""
    count = site.count if name == _REVIEWS[2] else _FEW
    if name == _REVIEWS[0]:
        slots = {"nvidia.com/gpu": "1"}
        return [review_body(slots, CASTSLICE, namespace=_namespace(index), number=index) for index in range(count)]
    return [hami(1000 + index, _namespace(index), index) for index in range(count)]


def _change(webhook: Webhook, change: Callable[[Api, int], Coroutine[Any, Any, object]]) -> float:
    """Of one change, with the time until the next."""

    async def changes() -> None:
        async with webhook.site.reach() as api:
            for number in range(_CHANGES):
                await change(api, number)
                await asyncio.sleep(_SECONDS_PER_CHANGE)

    return webhook.used(lambda: asyncio.run(changes())) / _CHANGES


async def _change_policy(api: Api, number: int) -> None:
    await api.merge(SLICE_POLICIES, "policy-0", {"spec": {"priority": number + 1}})


async def _change_namespace(api: Api, number: int) -> None:
    await api.merge(NAMESPACES, _namespace(0), {"metadata": {"labels": {"tier": f"changed-{number}"}}})


_KINDS: Final[dict[str, Callable[[Api, int], Coroutine[Any, Any, object]]]] = {
    "a policy": _change_policy,
    "a namespace": _change_namespace,
}


def measure() -> list[Figure]:
    programs = servers.build_peer()
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench.") as work, ExitStack() as stack:
        folder = Path(work)
        certificates = servers.Certificates.make(folder)
        sites = [stack.enter_context(_site(folder / f"{count}", count)) for count in (_FEW, _MANY)]
        starts = [[_start(site, certificates) for site in sites] for _ in range(_STARTS)]
        webhooks = [stack.enter_context(_webhook(site, certificates)) for site in sites]
        memory = [webhook.server.resident_megabytes() for webhook in webhooks]
        reviews: dict[str, list[list[float]]] = {}
        for name in _REVIEWS:
            loads = [servers.Generator(programs, certificates, _bodies(name, site), folder) for site in sites]
            reviews[name] = [
                [
                    load.run(webhook.server, seconds=_SECONDS, warm_up=_WARM_UP).processor_microseconds
                    for load, webhook in zip(loads, webhooks, strict=True)
                ]
                for _ in range(_REVIEW_ROUNDS)
            ]
        changed = {
            name: [[1e6 * _change(webhook, change) for webhook in webhooks] for _ in range(_ROUNDS)]
            for name, change in _KINDS.items()
        }
        idle = [
            [1e3 * webhook.used(lambda: time.sleep(_IDLE_SECONDS)) / _IDLE_SECONDS for webhook in webhooks]
            for _ in range(_ROUNDS)
        ]
    return [
        *(_figure(f"a review: {name}", "µs", runs, at_most=_GROWTH) for name, runs in reviews.items()),
        *(
            _figure(f"{name} changes", "µs", runs, at_most=None if name == "a policy" else _ROUGH_GROWTH)
            for name, runs in changed.items()
        ),
        _figure("idle", "ms per s", idle, at_most=_ROUGH_GROWTH),
        _figure("start, until it is ready", "s", [[start[0] for start in turn] for turn in starts]),
        _figure("start, CPU", "s", [[start[1] for start in turn] for turn in starts]),
        _figure("resident memory", "MB", [memory]),
        Figure(
            name="resident memory for each object more",
            unit="kB",
            value=1000 * (memory[1] - memory[0]) / (2 * (_MANY - _FEW)),
        ),
    ]


def _figure(name: str, unit: str, turns: Sequence[Sequence[float]], at_most: float | None = None) -> Figure:
    """Of the one that holds many, to the one that holds few."""
    few, many = (min(turn[index] for turn in turns) for index in range(2))
    return Figure(name=name, unit=unit, value=many, baseline=few, at_most=at_most)


def main() -> int:
    title = f"The webhook's CPU, with {_MANY:,} policies, namespaces and claim templates in the API server"
    publish("growth", title, f"with {_FEW}", measure())
    return 0


if __name__ == "__main__":
    sys.exit(main())
