"""Measures a cluster of many GPU nodes: pods created and bound per second, and what that costs in processor time.

The same pods are created, and then scheduled by the real scheduler, on a fresh control plane for each way of asking:

- for a plain extended resource, with no webhook in between: the baseline;
- in CastSlice's dialect, which the webhook turns into an extended resource;
- for an amount of memory and for a fraction, which it turns into claims on the GPUs that the nodes publish;
- for an amount of memory where the nodes publish the GPUs' MIG partitions, too.

Creating and scheduling are measured one after the other, because they would share the cores. `python -m bench.scale`
shows a table and writes `bench/results/scale-...json`; `--nodes 200 --pods 2000` is the size of the figures we publish.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from bench import fleet, servers
from bench.figures import Figure, publish
from bench.reviews import CASTSLICE, review_body
from gpuslice.admission.registration import webhook_configurations
from gpuslice.dialects.known import native
from gpuslice.kube.errors import ApiError
from gpuslice.kube.informers import Informers
from gpuslice.kube.resources import PODS, Metadata
from gpuslice.model import devices
from gpuslice.node.gpus.policies import GpuPolicies, MigMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.fleet import Fleet
    from bench.servers import Server
    from gpuslice.kube.client.api import Api

_NAMESPACE: Final = "research"
#: Pods of a cluster are pods of workloads: so many different ones.
_WORKLOADS: Final = 40
_WARM_UP: Final = 40
_PODS_PER_GPU: Final = 4
_SECONDS_TO_TAKE_EFFECT: Final = 30.0
_SECONDS_WITHOUT_PROGRESS: Final = 60.0
_WITHOUT_PARTITIONS: Final = GpuPolicies(mig_mode=MigMode.KEEP)
_WITH_PARTITIONS: Final = GpuPolicies()

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way of asking, and what the nodes have for it."""

    name: str
    limits: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    #: What a pod asks for in the end; None if that is a claim.
    resource: str | None = None
    webhook: bool = True
    policies: GpuPolicies | None = None
    #: No more pods than this are created.
    at_most: int | None = None


_BASELINE: Final = Variant(
    name="plain",
    limits={fleet.PLAIN_RESOURCE: "1"},
    resource=fleet.PLAIN_RESOURCE,
    webhook=False,
)
_MEMORY: Final = {native.MEMORY.name: "10Gi"}
_VARIANTS: Final = (
    Variant(
        name="castslice",
        limits={devices.WHOLE_RESOURCE: "1"},
        annotations=CASTSLICE,
        resource=devices.SHARED_RESOURCE,
    ),
    Variant(name="memory", limits=_MEMORY, policies=_WITHOUT_PARTITIONS),
    Variant(name="fraction", annotations={native.FRACTION.name: "1/4"}, policies=_WITHOUT_PARTITIONS),
    # Few, because for each pod and node the scheduler of 1.36 reads the devices of all nodes that have counters.
    Variant(name="memory, MIG published", limits=_MEMORY, policies=_WITH_PARTITIONS, at_most=20),
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the cluster is, and what the control plane may do."""

    nodes: int
    gpus: int
    pods: int
    throttled: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of one variant. Processor time is in seconds, for all pods together."""

    pods: int
    created_per_second: float
    bound_per_second: float
    #: From the first creation until every pod had its claims; 0 without claims.
    seconds_to_claims: float
    creating_api_server: float
    webhook: float
    scheduler: float
    #: Of everything, from the first creation to the last binding.
    everything: float
    webhook_megabytes: float = 0


class _ClaimStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_claim_name: str = ""


class _PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""


class _PodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_claim_statuses: list[_ClaimStatus] | None = None


class _Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata
    spec: _PodSpec
    status: _PodStatus


class Progress:
    """Counts pods that have their claims, and pods that are bound."""

    def __init__(self, connection: Api) -> None:
        self.informers = Informers(connection)
        self.pods = self.informers.informer(PODS, _Pod, self._stage, namespace=_NAMESPACE)
        self.claimed = 0
        self.bound = 0
        self._moved = asyncio.Event()
        self.pods.store.listen(lambda _, old, new: self._count(old, new))

    async def until(self, done: Callable[[], bool], what: str) -> None:
        while not done():
            self._moved.clear()
            try:
                async with asyncio.timeout(_SECONDS_WITHOUT_PROGRESS):
                    await self._moved.wait()
            except TimeoutError:
                counts = f"{len(self.pods.store)} pods, {self.claimed} with claims, {self.bound} bound"
                raise SystemExit(f"error: waited for {what}, and nothing moves: {counts}") from None

    @staticmethod
    def _stage(pod: _Pod) -> tuple[bool, bool]:
        return bool(pod.status.resource_claim_statuses), bool(pod.spec.node_name)

    def _count(self, old: tuple[bool, bool] | None, new: tuple[bool, bool] | None) -> None:
        claimed, bound = new or (False, False)
        was_claimed, was_bound = old or (False, False)
        self.claimed += claimed - was_claimed
        self.bound += bound - was_bound
        self._moved.set()


def measure(sizes: Sizes, variants: Sequence[Variant]) -> list[Figure]:
    runs = {}
    for variant in (_BASELINE, *variants):
        began = time.monotonic()
        runs[variant.name] = asyncio.run(_run(variant, sizes))
        print(f"    {time.monotonic() - began:.0f} s", flush=True)
    baseline = runs.pop(_BASELINE.name)
    figures = [figure for name, run in runs.items() for figure in _figures(name, run, baseline)]
    return [*_figures(_BASELINE.name, baseline, None), *figures]


async def _run(variant: Variant, sizes: Sizes) -> Run:
    count = min(sizes.pods, variant.at_most or sizes.pods)
    print(f"==> {variant.name}: {sizes.nodes} nodes with {sizes.gpus} GPUs, {count} pods", flush=True)
    with ExitStack() as stack:
        made = stack.enter_context(fleet.running(throttled=sizes.throttled))
        made.cluster.kubectl("create", "namespace", _NAMESPACE)
        await made.add_nodes(sizes.nodes, sizes.gpus)
        if variant.policies is not None:
            published = await made.publish_gpus(sizes.nodes, sizes.gpus, variant.policies)
            print(f"    {published} devices on each node", flush=True)
        webhook = _serve(made, stack) if variant.webhook else None
        async with made.connect() as connection:
            await _wait_until_in_force(connection, variant)
            return await _measure(made, connection, variant, count, webhook)


def _serve(made: Fleet, stack: ExitStack) -> Server:
    """The webhook as it is installed, beside the API server."""
    certificates = servers.Certificates.make(made.cluster.folder)
    server = stack.enter_context(servers.ours(certificates, f"--kubeconfig={made.cluster.kubeconfig}"))
    webhooks = webhook_configurations.Webhooks(
        target=webhook_configurations.Address(url=f"https://127.0.0.1:{server.port}")
    )
    documents = [webhook_configurations.mutating(webhooks), webhook_configurations.validating(webhooks)]
    bundle = base64.b64encode(certificates.authority.read_bytes()).decode()
    for document in documents:
        for webhook in document["webhooks"]:
            webhook["clientConfig"]["caBundle"] = bundle
    listed = {"apiVersion": "v1", "kind": "List", "items": documents}
    made.cluster.kubectl("create", "-f", "-", input=json.dumps(listed))
    return server


def _pod(variant: Variant, number: int) -> Object:
    """As a ReplicaSet makes it."""
    annotations = variant.annotations | {"example.com/workload": str(number % _WORKLOADS)}
    pod: Object = json.loads(review_body(variant.limits, annotations, namespace=_NAMESPACE, number=number))["request"][
        "object"
    ]
    del pod["metadata"]["managedFields"]
    pod["spec"]["containers"][0]["volumeMounts"] = []  # the API server adds the token's
    return pod


async def _wait_until_in_force(connection: Api, variant: Variant) -> None:
    """The API server reads configurations a moment after they are stored. Warms everything up, too."""
    deadline = time.monotonic() + _SECONDS_TO_TAKE_EFFECT
    seen = 0
    while seen < _WARM_UP:
        try:
            answer = await connection.call(
                "POST", PODS.path(_NAMESPACE), parameters={"dryRun": "All"}, body=_pod(variant, seen)
            )
            seen += _is_rewritten(json.loads(answer), variant)
        except ApiError as error:
            answer = str(error).encode()
            await asyncio.sleep(0.1)
        if time.monotonic() > deadline:
            raise SystemExit(f"error: pods are not as they should be: {answer.decode()[:2000]}")


def _is_rewritten(pod: Object, variant: Variant) -> bool:
    resources = pod["spec"]["containers"][0]["resources"]
    return bool(resources.get("claims")) if variant.resource is None else variant.resource in resources["limits"]


async def _measure(made: Fleet, connection: Api, variant: Variant, count: int, webhook: Server | None) -> Run:
    pods = [_pod(variant, number) for number in range(count)]
    progress = Progress(connection)

    async def create(each: Api, pod: Object) -> None:
        await each.create(PODS, pod, namespace=_NAMESPACE)

    def webhook_seconds() -> float:
        return 0 if webhook is None else webhook.processor_seconds()

    async with fleet.following(progress.informers):
        before, webhook_before, began = made.processor_seconds(), webhook_seconds(), time.perf_counter()
        await made.each(pods, create)
        creating = time.perf_counter() - began
        api_server = made.processor_seconds()["kube-apiserver"] - before["kube-apiserver"]
        webhook_used = webhook_seconds() - webhook_before
        if variant.resource is None:
            await progress.until(lambda: progress.claimed == count, "claims of all pods")
        claiming = time.perf_counter() - began
        per_second, scheduler = await _schedule(made, progress, count)
        after = made.processor_seconds()
    return Run(
        pods=count,
        created_per_second=count / creating,
        bound_per_second=per_second,
        seconds_to_claims=claiming if variant.resource is None else 0,
        creating_api_server=api_server,
        webhook=webhook_used,
        scheduler=scheduler,
        everything=scheduler + webhook_used + sum(after[name] - before[name] for name in before),
        webhook_megabytes=0 if webhook is None else webhook.resident_megabytes(),
    )


async def _schedule(made: Fleet, progress: Progress, pods: int) -> tuple[float, float]:
    """Pods bound per second, and the scheduler's processor time; both from its start.

    Not from the first binding: bindings lag behind, and most of the work is done when the first of them are seen.
    """
    began = time.perf_counter()
    with made.scheduling() as pid:
        await progress.until(lambda: progress.bound == pods, "all pods to be bound")
        return pods / (time.perf_counter() - began), servers.processor_seconds(pid)


def _figures(name: str, run: Run, baseline: Run | None) -> list[Figure]:
    def figure(what: str, unit: str, of: Callable[[Run], float]) -> Figure:
        return Figure(
            name=f"{name}: {what}", unit=unit, value=of(run), baseline=None if baseline is None else of(baseline)
        )

    figures = [
        figure("created", "per s", lambda each: each.created_per_second),
        figure("bound", "per s", lambda each: each.bound_per_second),
        figure("API server's CPU, creating", "ms per pod", lambda each: 1e3 * each.creating_api_server / each.pods),
        figure("scheduler's CPU", "ms per pod", lambda each: 1e3 * each.scheduler / each.pods),
        figure("CPU of the control plane in all", "ms per pod", lambda each: 1e3 * each.everything / each.pods),
    ]
    if baseline is None:
        return figures
    if run.seconds_to_claims:
        claimed = run.pods / run.seconds_to_claims
        figures.insert(1, Figure(name=f"{name}: created and given claims", unit="per s", value=claimed))
    return [
        *figures,
        # What a pod costs the webhook, to what the same pod costs the API server without one.
        Figure(
            name=f"{name}: webhook's CPU, to the API server's",
            unit="ms per pod",
            value=1e3 * run.webhook / run.pods,
            baseline=1e3 * baseline.creating_api_server / baseline.pods,
        ),
        Figure(name=f"{name}: webhook's memory", unit="MB", value=run.webhook_megabytes),
    ]


def _sizes(arguments: Sequence[str]) -> tuple[Sizes, list[Variant]]:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--gpus", type=int, default=8, help="of each node")
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument(
        "--throttled", action="store_true", help="leave controllers and scheduler with Kubernetes' own limits for calls"
    )
    parser.add_argument(
        "--only", action="append", choices=[variant.name for variant in _VARIANTS], help="may be given several times"
    )
    given = parser.parse_args(arguments)
    if given.pods > given.nodes * given.gpus * _PODS_PER_GPU:
        parser.error(f"--pods {given.pods}: a GPU has room for {_PODS_PER_GPU}; add nodes")
    sizes = Sizes(nodes=given.nodes, gpus=given.gpus, pods=given.pods, throttled=given.throttled)
    return sizes, [variant for variant in _VARIANTS if not given.only or variant.name in given.only]


def main(arguments: Sequence[str] = ()) -> int:
    sizes, variants = _sizes(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    title = f"{sizes.pods} pods on {sizes.nodes} nodes with {sizes.gpus} GPUs each"
    name = f"scale-{sizes.nodes}-nodes-{sizes.pods}-pods{'-throttled' if sizes.throttled else ''}"
    publish(name, title, _BASELINE.name, measure(sizes, variants))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
