"""/healthz and /readyz for HTTP servers that run in threads beside the event loop, as that of the agent's metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.system.supervised.health import ANSWER_SECONDS, ask_loop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from gpuslice.system.supervised.health import Health


def with_probes(
    application: WSGIApplication, health: Health, loop: asyncio.AbstractEventLoop, *, seconds: float = ANSWER_SECONDS
) -> WSGIApplication:
    """The application, and beside it the two probes, answered by the loop or, if it gives no answer, in its place."""
    questions = {"/healthz": health.alive, "/readyz": health.ready}

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        question = questions.get(environment.get("PATH_INFO", ""))
        if question is None:
            return application(environment, start)
        found = ask_loop(loop, question, seconds=seconds)
        body = f"{found.text}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        start(f"{found.status.value} {found.status.phrase}", headers)
        return [body]

    return answer
