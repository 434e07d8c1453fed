"""The whole webhook server: from its sockets to its drain."""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from gpuslice.admission.webhook.endpoints import Reviews, Routes, add_metrics, add_probes
from gpuslice.admission.webhook.metrics import LOUD_FAULTS, Metrics
from gpuslice.http import listening
from gpuslice.http.connection import Connection, Limits, Site
from gpuslice.http.connection_pool import UNPROVEN_PART, ConnectionPool
from gpuslice.http.drop_report import DropReport
from gpuslice.http.streams import PlainStream, TlsStream
from gpuslice.system.supervised.health import Health

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.admission.webhook.cluster_view import Cluster
    from gpuslice.http.serving_certificate import ServingCertificate

#: For other descriptors than connections.
_SPARE_DESCRIPTORS: Final = 192
#: Connections to the port for metrics and probes; a part of those.
_MOST_WATCHERS: Final = 64
#: A connection that was silent for so long is not about to be used; until then it may be.
_QUIET_SECONDS: Final = 1.0
_DRAIN_STEP_SECONDS: Final = 0.05
#: While the server stops, it drops clients that have not ended their handshake after so long.
_LAST_HANDSHAKE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the server is run."""

    address: str = ""
    port: int = 8443
    metrics_port: int = 8080
    max_connections: int = 1024
    #: How long requests are still taken after SIGTERM: until the API servers send new ones elsewhere.
    drain_seconds: float = 5.0
    #: And how long these requests may take at most.
    finish_seconds: float = 30.0
    limits: Limits = field(default_factory=Limits)


class Webhook:
    """One server in this process. `stop` ends it in order; `health` has the other parts of the process, too."""

    def __init__(
        self,
        options: Options,
        cluster: Cluster,
        identity: ServingCertificate,
        metrics: Metrics | None = None,
        health: Health | None = None,
    ) -> None:
        self._options = options
        self._identity = identity
        self._metrics = metrics or Metrics()
        self._reviews = Reviews(cluster, self._metrics)
        self._health = health or Health()
        self._health.check("server", self._stopping, liveness=False)
        self._health.check("certificate", self._no_certificate, liveness=False)
        self._health.check("cluster", lambda: _unseen(cluster), liveness=False)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

    def stop(self, *, hurry: bool = False) -> None:
        """Begins the drain; called again, or in a hurry, it does not wait for API servers to take notice."""
        if hurry or self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self, ready: Callable[[str, str], None]) -> None:
        """Serves until it is stopped. `ready` hears the addresses."""
        options, loop = self._options, asyncio.get_running_loop()
        tls_socket = listening.open_socket(options.address, options.port, "--port")
        try:
            plain_socket = listening.open_socket(options.address, options.metrics_port, "--metrics-port")
        except listening.ListenError:
            tls_socket.close()
            raise
        addresses = listening.describe(tls_socket, "https"), listening.describe(plain_socket, "http")
        # Two pools: however many connections the one has, probes and metrics are served.
        pool = ConnectionPool(_most_connections(options.max_connections), loop)
        watchers = ConnectionPool(_MOST_WATCHERS, loop)
        watchers.turns.part = UNPROVEN_PART
        drops = DropReport(loop)
        tls = self._site(pool, loop, self._review_routes(), drops)
        plain = self._site(watchers, loop, self._metrics_routes(), drops)
        tls.refuse = self._reviews.refuse
        self._watch_client_authority(pool)
        self._metrics.follow(
            in_flight=lambda: pool.in_flight,
            connections=lambda: len(pool) + len(watchers),
            expires=lambda: self._identity.expires,
            authenticates=lambda: float(pool.authenticates),
            authenticated_connections=lambda: pool.authenticated,
        )
        tls_listener = listening.Listener(
            tls_socket, lambda source: Connection(tls, self._tls_stream(), source), pool, loop
        )
        plain_listener = listening.Listener(
            plain_socket, lambda source: Connection(plain, PlainStream(), source), watchers, loop
        )
        try:
            ready(*addresses)
            await self._stop.wait()
            await self._drain(tls, tls_listener)
        finally:
            tls_listener.close()
            plain_listener.close()
            for each in (pool, watchers):
                each.drop_all("stopped")
            drops.write()
            self._reviews.close()

    async def _drain(self, site: Site, listener: listening.Listener) -> None:
        """Not ready from now on, but answering: it takes others some time to hear of it."""
        site.draining = True
        pool, loop = site.pool, asyncio.get_running_loop()
        self._log.info("stopping", connections=len(pool), seconds=self._options.drain_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.drain_seconds):
                await self._hurry.wait()
        listener.close()
        closed = loop.time()
        while (len(pool) or listener.busy) and loop.time() < closed + self._options.finish_seconds:
            pool.close_quiet(0.0 if self._hurry.is_set() else _QUIET_SECONDS)
            if loop.time() > closed + _LAST_HANDSHAKE_SECONDS:
                pool.drop_unfinished_handshakes()
            # The pool may be empty only for a moment: a client that was just accepted is not in it yet.
            await asyncio.sleep(_DRAIN_STEP_SECONDS)
        self._log.info("stopped", unfinished=pool.in_flight)

    def _stopping(self) -> str:
        return "it is stopping" if self._stop.is_set() else ""

    def _no_certificate(self) -> str:
        return "" if self._identity.loaded else "there is none to serve with yet"

    def _tls_stream(self) -> TlsStream:
        return TlsStream(self._identity.context, self._identity.client_authority)

    def _watch_client_authority(self, pool: ConnectionPool) -> None:
        """Tells the pool, and the log, whether API servers prove that they are API servers."""

        def changed() -> None:
            pool.expect_proof()
            # The server asked these clients for no proof, or for another.
            pool.close_unproven()
            self._log.info("reviews are taken from API servers alone")

        self._identity.on_client_authority = changed
        if self._identity.client_authority is not None:
            pool.expect_proof()
        else:
            self._log.warning(
                "reviews are taken from all who reach the port: no --client-authority tells API servers from others"
            )

    def _site(self, pool: ConnectionPool, loop: asyncio.AbstractEventLoop, routes: Routes, drops: DropReport) -> Site:
        def fault(reason: str, source: str) -> None:
            self._metrics.fault(reason)
            if reason in LOUD_FAULTS:
                drops.add(reason, source)

        return Site(handle=routes, pool=pool, loop=loop, fault=fault, limits=self._options.limits)

    def _review_routes(self) -> Routes:
        routes = Routes()
        self._reviews.add_to(routes)
        add_probes(routes, self._health)
        return routes

    def _metrics_routes(self) -> Routes:
        routes = Routes()
        add_metrics(routes, self._metrics)
        add_probes(routes, self._health)
        return routes


def _unseen(cluster: Cluster) -> str:
    return "" if cluster.synced() else "it has not been seen as a whole yet"


def _most_connections(wanted: int) -> int:
    """No more than the kernel gives us descriptors for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, wanted + _SPARE_DESCRIPTORS)), hard))
    return max(1, min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS))
