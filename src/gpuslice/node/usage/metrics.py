"""Metrics at /metrics. Every series exists, with zero, before its first event."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import dataclass
from http import HTTPStatus
from socket import SOCK_STREAM
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuslice.model.gpus import short_name
from gpuslice.node.errors import AgentError
from gpuslice.node.sessions.record import WorkloadRecord
from gpuslice.node.usage.metrics_access import PATH
from gpuslice.system.supervised.probes import with_probes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse

    from prometheus_client import CollectorRegistry

    from gpuslice.node.attach.server import AttachServer
    from gpuslice.node.audit import Audit
    from gpuslice.node.sessions.registry import Registry
    from gpuslice.node.sessions.session import GpuUse
    from gpuslice.node.usage.metrics_access import Reviewer
    from gpuslice.system.supervised.health import Health

_PATIENCE_SECONDS: Final = 5.0
_MOST_CONNECTIONS: Final = 32
_LABELS: Final = ("session", "name", "gpu", "model", "namespace", "pod", "container")


@dataclass(frozen=True, slots=True)
class _SessionSample:
    #: As in _LABELS. The last three are empty unless Kubernetes asked for the session.
    labels: tuple[str, ...]
    limit: int
    use: GpuUse
    processes: int


@dataclass(frozen=True, slots=True)
class _Snapshot:
    sessions_active: int
    allocations: int
    denials: int
    recovered: int
    breaches: int
    quarantined: int
    attach_refused: int
    audit_dropped: int
    sessions: list[_SessionSample]


class AgentCollector(Collector):
    """Reads the sessions at each scrape.

    The numbers are taken in the agent's loop, the text is made in the asker's thread: attach never waits for it.
    """

    def __init__(self, registry: Registry, server: AttachServer, audit: Audit, loop: asyncio.AbstractEventLoop) -> None:
        self._registry = registry
        self._server = server
        self._audit = audit
        self._loop = loop
        self._allocations = 0

    def describe(self) -> list[Metric]:
        return []  # registering must not read the sessions

    def collect(self) -> Iterator[Metric]:
        snapshot = asyncio.run_coroutine_threadsafe(self._snapshot(), self._loop).result(_PATIENCE_SECONDS)
        samples = snapshot.sessions
        yield GaugeMetricFamily(
            "gpuslice_sessions_active", "Sessions whose tenants may allocate.", value=snapshot.sessions_active
        )
        used = sum(sample.use.held + sample.use.overhead for sample in samples)
        text = "Bytes that all sessions use now: held by their processes, and overhead."
        yield GaugeMetricFamily("gpuslice_used_bytes", text, value=used)
        # It rises and falls, so it is a gauge whatever its name says: the name is a promise.
        yield GaugeMetricFamily(
            "gpuslice_used_bytes_total", "The same as gpuslice_used_bytes, by its first name.", value=used
        )
        for name, text, number in (
            ("gpuslice_alloc_events", "Allocations that were granted.", snapshot.allocations),
            ("gpuslice_denied_alloc", "Allocations that were denied.", snapshot.denials),
            ("gpuslice_recovered_bytes", "Bytes given back for processes that ended holding them.", snapshot.recovered),
            ("gpuslice_breaches", "Memory found on a GPU that no session had granted.", snapshot.breaches),
            (
                "gpuslice_quarantined_sessions",
                "Sessions put aside because their files were broken.",
                snapshot.quarantined,
            ),
            ("gpuslice_attach_refused", "Attach requests that were refused.", snapshot.attach_refused),
            ("gpuslice_audit_lines_dropped", "Audit lines that could not be written.", snapshot.audit_dropped),
        ):
            yield CounterMetricFamily(name, text, value=number)
        for suffix, text in (
            ("limit", "What the session may hold on the GPU."),
            ("held", "What its processes hold."),
            ("peak", "The most it used."),
            ("overhead", "Contexts and modules: what NVML counts beyond what was asked for."),
        ):
            family = GaugeMetricFamily(f"gpuslice_session_{suffix}_bytes", text, labels=_LABELS)
            for sample in samples:
                family.add_metric(sample.labels, sample.limit if suffix == "limit" else getattr(sample.use, suffix))
            yield family
        breaches = CounterMetricFamily("gpuslice_session_breaches", "Breaches of the session.", labels=_LABELS)
        processes = GaugeMetricFamily("gpuslice_session_processes", "Processes in the session.", labels=_LABELS)
        for sample in samples:
            breaches.add_metric(sample.labels, sample.use.breaches)
            processes.add_metric(sample.labels, sample.processes)
        yield breaches
        yield processes

    async def _snapshot(self) -> _Snapshot:
        totals = self._registry.totals
        allocations, denials = totals.allocations, totals.denials
        recovered, breaches = totals.recovered_bytes, totals.breaches
        samples, active = [], 0
        for session in self._registry.sessions.values():
            record = session.record
            active += record.state == "active"
            workload = record.workload or WorkloadRecord()
            whose = workload.namespace, workload.pod, workload.container
            for gpu, use in zip(record.gpus, session.use(), strict=True):
                allocations += use.allocations
                denials += use.denials
                recovered += use.recovered
                breaches += use.breaches
                labels = (record.id, record.name, gpu.uuid, short_name(gpu.model), *whose)
                samples.append(_SessionSample(labels, gpu.limit_bytes, use, len(session.processes)))
        return _Snapshot(
            sessions_active=active,
            allocations=self._no_less(allocations),
            denials=denials,
            recovered=recovered,
            breaches=breaches,
            quarantined=self._registry.quarantined,
            attach_refused=self._server.refused,
            audit_dropped=self._audit.dropped,
            sessions=samples,
        )

    def _no_less(self, allocations: int) -> int:
        """A counter must not fall, and an attempt that was counted while it was under way may be taken back."""
        self._allocations = max(self._allocations, allocations)
        return self._allocations


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each of a few connections. Who is too many is hung up on, and who is slow after a while."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self._room = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called, as the one above does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the library's
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the library's
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, *_arguments: object) -> None:
        """Who hangs up or is too slow is no error of ours."""


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_SECONDS

    def log_message(self, *_arguments: object) -> None:
        """Scrapes are not told."""


class MetricsServer:
    """Serves /metrics in threads of its own, to those whom the reviewer lets; /healthz and /readyz to all."""

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        health: Health,
        *collectors: Collector,
        reviewer: Reviewer | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            raise AgentError(
                "metrics", f"{address!r} is not an address for metrics", remedy="write for example 127.0.0.1:9500"
            )
        for collector in collectors:
            registry.register(collector)
        self._application = make_wsgi_app(registry)
        self._reviewer = reviewer
        self._loop = asyncio.get_running_loop()
        try:
            family, *_, where = socket.getaddrinfo(host.strip("[]") or "127.0.0.1", int(port), type=SOCK_STREAM)[0]
            self._server = _Server((str(where[0]), int(port)), family)
        except OSError as error:
            raise AgentError(
                "metrics",
                f"metrics cannot be served at {address} ({error.strerror})",
                remedy="give another address with --metrics, or none",
            ) from None
        self._server.set_app(with_probes(self._answer, health, self._loop))
        self.port = int(self._server.server_port)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("PATH_INFO") != PATH:
            return _say(start_response, HTTPStatus.NOT_FOUND)
        status = self._review(str(environ.get("HTTP_AUTHORIZATION", "")))
        if status is not HTTPStatus.OK:
            return _say(start_response, status)
        text: Iterable[bytes] = self._application(environ, start_response)
        return text

    def _review(self, authorization: str) -> HTTPStatus:
        if self._reviewer is None:
            return HTTPStatus.OK
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return HTTPStatus.UNAUTHORIZED
        try:
            asked = asyncio.run_coroutine_threadsafe(self._reviewer.review(token.strip()), self._loop)
            return asked.result(_PATIENCE_SECONDS)
        except Exception:  # noqa: BLE001 - whatever it is: not allowed
            return HTTPStatus.SERVICE_UNAVAILABLE

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _say(start_response: StartResponse, status: HTTPStatus) -> list[bytes]:
    headers = [("Content-Type", "text/plain; charset=utf-8")]
    if status is HTTPStatus.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", "Bearer"))
    start_response(f"{status.value} {status.phrase}", headers)
    return [f"{status.phrase}\n".encode()]
