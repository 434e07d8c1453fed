"""Servers for tests, ended with them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from gpuslice.admission.webhook.cluster_view import Cluster, StaticCluster
from gpuslice.admission.webhook.server import Options
from gpuslice.http.connection import Limits
from tests.webhook.support import Authority, ServerThread, WebhookProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuslice.http.client_authority import ClientAuthority


class StartServer(Protocol):
    """The fixture `serve`."""

    def __call__(
        self,
        *,
        limits: Limits | None = None,
        cluster: Cluster | None = None,
        max_connections: int = 1024,
        client_authority: ClientAuthority | None = None,
    ) -> ServerThread: ...


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def new_webhook(gpuslice_command: Path, authority: Authority, tmp_path: Path) -> Iterator[WebhookProcess]:
    """A webhook that is not started yet."""
    made = WebhookProcess(gpuslice_command, authority, tmp_path)
    yield made
    made.end()
    assert not made.log.exists() or "Traceback" not in made.log.read_text(), made.log.read_text()


@pytest.fixture
def webhook(new_webhook: WebhookProcess) -> WebhookProcess:
    """A webhook that runs, without a cluster."""
    return new_webhook.start("--drain", "0")


@pytest.fixture
def serve(authority: Authority) -> Iterator[StartServer]:
    """Starts servers in threads of this process."""
    with ExitStack() as stack:

        def start(
            *,
            limits: Limits | None = None,
            cluster: Cluster | None = None,
            max_connections: int = 1024,
            client_authority: ClientAuthority | None = None,
        ) -> ServerThread:
            options = Options(
                address="127.0.0.1",
                port=0,
                metrics_port=0,
                max_connections=max_connections,
                limits=limits or Limits(),
            )
            made = ServerThread(authority, options, cluster or StaticCluster())
            if client_authority is not None:
                made.identity.set_client_authority(client_authority)
            made.start()
            stack.callback(made.stop)
            return made

        yield start


@pytest.fixture
def server(serve: StartServer) -> Iterator[ServerThread]:
    """A server in this process. Whatever a test did to it, the next request is served."""
    made = serve()
    yield made
    assert made.get("/healthz").status == 200
    with made.connect() as client:
        assert client.ask("GET", "/readyz").status == 200
