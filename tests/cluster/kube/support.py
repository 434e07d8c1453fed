"""An API server with nothing behind it that acts by itself, a cable to it that can be cut, and ways to wait."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
from prometheus_client import CollectorRegistry

from gpuslice.kube.client import credentials
from gpuslice.kube.client.api import Api
from gpuslice.kube.reconciler import Manager
from gpuslice.kube.resources import Metadata, Resource
from gpuslice.system.supervised.health import Health
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable

    from gpuslice.kube.informers import Informers
    from gpuslice.kube.reconciler import Reconciler
    from gpuslice.kube.store import Key, Store
    from gpuslice_cluster.clusters import Cluster

V = TypeVar("V")

ROOT: Final = Path(__file__).resolve().parents[3]
DEFINITIONS: Final = ROOT / "deploy" / "crds"
POLICY_DEFINITION: Final = DEFINITIONS / "gpuslice.io_slicepolicies.yaml"
CONFIG_MAPS: Final = Resource("", "v1", "configmaps")


class ConfigMap(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] | None = None


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def policy(name: str, *rules: dict[str, Any]) -> dict[str, Any]:
    """A SlicePolicy; without rules, one that is for a namespace of its own name."""
    return {
        "apiVersion": "gpuslice.io/v1alpha1",
        "kind": "SlicePolicy",
        "metadata": {"name": name},
        "spec": {"rules": list(rules) or [{"name": "only", "match": {"namespaces": [name]}}]},
    }


def reach(cluster: Cluster) -> Api:
    """As the administrator."""
    return Api(credentials.load(cluster.kubeconfig, {}), "tests")


def install_policies(cluster: Cluster) -> None:
    # Applied by the server: two tests that apply at once do not conflict.
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(POLICY_DEFINITION))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/slicepolicies.gpuslice.io")


def install_quotas(cluster: Cluster) -> None:
    """With policies, which the same processes follow."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(DEFINITIONS))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(DEFINITIONS))


@contextlib.asynccontextmanager
async def running(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """They run meanwhile, and a failure of one is the test's."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def hosted(informers: Informers, *reconcilers: Reconciler[Any]) -> Coroutine[Any, Any, None]:
    """The informers and the reconcilers, as a process runs them."""
    return Manager(informers, Health(), CollectorRegistry(), reconcilers).run()


class Told(Generic[V]):
    """Everything that a store tells, and a way to wait until it is as it should be."""

    def __init__(self, store: Store[V]) -> None:
        self.changes: list[tuple[Key, V | None, V | None]] = []
        self._store = store
        self._changed = asyncio.Event()
        store.listen(self._hear)

    def _hear(self, key: Key, old: V | None, new: V | None) -> None:
        self.changes.append((key, old, new))
        self._changed.set()

    async def until(self, condition: Callable[[Store[V]], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition(self._store):
                self._changed.clear()
                await self._changed.wait()


async def all_of(calls: Iterable[Coroutine[Any, Any, object]], at_once: int = 20) -> None:
    """Many calls, a few at a time."""
    gate = asyncio.Semaphore(at_once)

    async def one(call: Coroutine[Any, Any, object]) -> None:
        async with gate:
            await call

    await asyncio.gather(*(one(call) for call in calls))


def kill_component(cluster: Cluster, name: str) -> int:
    """Kills it, and says how often it had been started again before. Its supervisor starts it once more."""
    status = cluster.status()
    assert status is not None
    state = next(each for each in status.components if each.name == name)
    os.kill(state.pid, signal.SIGKILL)
    return state.restarts


async def restart_api_server(cluster: Cluster) -> None:
    """Killed, and back: it remembers nothing but what is in etcd."""
    before = kill_component(cluster, "kube-apiserver")

    def is_back() -> bool:
        status = cluster.status()
        assert status is not None
        state = next(each for each in status.components if each.name == "kube-apiserver")
        return state.restarts > before and state.state == "ready"

    await until(is_back)


def compact(cluster: Cluster) -> None:
    """All versions but the last are forgotten, as happens by itself every five minutes."""
    folder = cluster.folder / "pki"
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(str(folder / "apiserver-etcd.crt"), str(folder / "apiserver-etcd.key"))
    url = _etcd_url(cluster)

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode())  # noqa: S310 - ours
        with urllib.request.urlopen(request, context=context) as answer:  # noqa: S310 - see above
            found: dict[str, Any] = json.load(answer)
            return found

    revision = ask("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    ask("/v3/kv/compaction", {"revision": revision, "physical": True})


def _etcd_url(cluster: Cluster) -> str:
    plan = json.loads((cluster.folder / "plan.json").read_text())
    arguments: list[str] = next(each["arguments"] for each in plan["components"] if each["name"] == "etcd")
    return next(text.partition("=")[2] for text in arguments if text.startswith("--listen-client-urls="))


_TURNS_UNTIL_CARRIED: Final = 5


class Cable:
    """A TCP connection's way to the API server, which can be cut and mended."""

    def __init__(self, cluster: Cluster) -> None:
        self._found = credentials.load(cluster.kubeconfig, {})
        self._target = urlsplit(self._found.server)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._wires: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    def reach(self) -> Api:
        """The API server at the other end."""
        return Api(replace(self._found, server=f"https://127.0.0.1:{self._port}"), "tests")

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Ends every connection; new ones are refused."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        # What was accepted a moment ago gets its task within a few turns of the loop, and ends it at once.
        for _ in range(_TURNS_UNTIL_CARRIED):
            await asyncio.sleep(0)
        for wire in list(self._wires):
            wire.transport.abort()
        await server.wait_closed()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            writer.transport.abort()
            return
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._wires.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            self._wires.discard(writer)
            writer.transport.abort()
            return
        self._wires.add(far_writer)
        try:
            if self._server is not None:  # else it was cut meanwhile
                await asyncio.gather(_pour(reader, far_writer), _pour(far_reader, writer))
        finally:
            for wire in (writer, far_writer):
                self._wires.discard(wire)
                wire.close()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof() if writer.can_write_eof() else None
