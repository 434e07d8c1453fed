"""/healthz, /readyz and /metrics of the controller, on the same small server that the webhook has for them."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from gpuslice.admission.webhook.endpoints import Routes
from gpuslice.http import listening
from gpuslice.http.connection import Connection, Limits, Site
from gpuslice.http.connection_pool import ConnectionPool
from gpuslice.http.responses import Response, plain
from gpuslice.http.streams import PlainStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.system.supervised.health import Answer, Health

_METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_MOST_CONNECTIONS: Final = 32


class Endpoints:
    """Served from when it is made until `close`, by the loop that does the work: one that is stuck gives no answer."""

    def __init__(self, address: str, port: int, *, health: Health, metrics: Callable[[], bytes]) -> None:
        loop = asyncio.get_running_loop()
        routes = Routes()
        routes.get(b"/healthz", lambda _: _probe(health.alive()))
        routes.get(b"/readyz", lambda _: _probe(health.ready()))
        routes.get(b"/metrics", lambda _: Response(HTTPStatus.OK, metrics(), _METRICS_TYPE))
        opened = listening.open_socket(address, port, "--port")
        self.url: Final = listening.describe(opened, "http")
        self._pool = ConnectionPool(_MOST_CONNECTIONS, loop)
        site = Site(handle=routes, pool=self._pool, loop=loop, fault=lambda _reason, _source: None, limits=Limits())
        self._listener = listening.Listener(
            opened, lambda source: Connection(site, PlainStream(), source), self._pool, loop
        )

    def close(self) -> None:
        self._listener.close()
        self._pool.drop_all("stopped")


def _probe(answer: Answer) -> Response:
    return plain(answer.status, answer.text)
