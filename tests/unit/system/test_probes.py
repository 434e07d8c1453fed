"""Probes on a real HTTP server in another thread than the loop that they ask."""

from __future__ import annotations

import asyncio
import http.client
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

from gpuslice.system.supervised.health import Health
from gpuslice.system.supervised.probes import with_probes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from wsgiref.types import WSGIApplication


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _served(application: WSGIApplication) -> Iterator[int]:
    server = make_server("127.0.0.1", 0, application, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path)
    with connection.getresponse() as response:
        answer = response.status, response.read().decode()
    connection.close()
    return answer


async def test_the_loop_answers_probes_and_the_application_the_rest() -> None:
    health, registry = Health(), CollectorRegistry()
    Gauge("something", "To be asked for.", registry=registry)
    part = health.part("publisher")
    application = with_probes(make_wsgi_app(registry), health, asyncio.get_running_loop(), seconds=60)
    with _served(application) as port:
        assert await asyncio.to_thread(_get, port, "/readyz") == (503, "publisher: has not started\n")
        assert await asyncio.to_thread(_get, port, "/healthz") == (200, "ok\n")
        part.ready()
        assert await asyncio.to_thread(_get, port, "/readyz") == (200, "ok\n")
        status, text = await asyncio.to_thread(_get, port, "/metrics")
        assert (status, "something 0.0" in text) == (200, True)


async def test_a_loop_that_is_stuck_is_an_answer() -> None:
    application = with_probes(make_wsgi_app(CollectorRegistry()), Health(), asyncio.get_running_loop(), seconds=0.01)
    with _served(application) as port:
        stuck = _get(port, "/healthz")  # in the loop's own thread, which does nothing else meanwhile
    assert stuck == (503, "event loop: gave no answer within 0.01 s, so it is stuck\n")
