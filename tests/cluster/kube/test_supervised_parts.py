"""Each part of controller and webhook is made to fail: by an error that it does not expect, raised inside it.

A part that is started again is logged, counted and named by /readyz while it fails, and works again when the cause is
gone. A part without which the process cannot go on ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import structlog
import trustme

from gpuslice.admission.cluster import state
from gpuslice.admission.registration.webhook_configurations import Address, Webhooks
from gpuslice.admission.webhook.server import Options
from gpuslice.cli.commands import webhook as webhook_command
from gpuslice.controller.manager import Controller, Settings
from gpuslice.controller.reconcilers import policy_status, webhook_configurations
from gpuslice.controller.reconcilers.webhook_configurations import Installation
from gpuslice.http.certificate_files import CertificateFiles, ClientAuthorityFile
from gpuslice.kube.errors import ApiError
from gpuslice.kube.events import Recorder
from gpuslice.kube.resources import NAMESPACES
from gpuslice.kube.watching import ListWatch
from gpuslice.model.settings import Settings as ClusterSettings
from gpuslice.pki import planning_process
from gpuslice.pki.trust import MUTATING, VALIDATING
from gpuslice.policies.stored_policies import SLICE_POLICIES
from gpuslice.system.supervised.supervision import PartFailedError
from tests.cluster.kube.support import install_policies, policy
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from gpuslice.kube.client.api import Api
    from gpuslice_cluster.clusters import Cluster

#: Nothing in the code under test raises that on purpose.
_CAUSE = "the cause of a test"


class _Fault:
    """Makes one function raise, until it is mended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self._monkeypatch, self._owner, self._name = monkeypatch, owner, name
        self._works = getattr(owner, name)

    def begin(self) -> None:
        def fail(*_: object, **__: object) -> None:
            raise KeyError(_CAUSE)

        self._monkeypatch.setattr(self._owner, self._name, fail)

    def mend(self) -> None:
        self._monkeypatch.setattr(self._owner, self._name, self._works)


class _Running:
    """A process's work in this process, and what it answers."""

    def __init__(self, url: str, task: asyncio.Task[None]) -> None:
        self.task = task
        self._url = url

    async def get(self, path: str) -> str:
        def read() -> str:
            try:
                with urllib.request.urlopen(f"{self._url}{path}") as answer:  # noqa: S310 - ours
                    return str(answer.read().decode())
            except urllib.error.HTTPError as error:
                with error:
                    return str(error.read().decode())

        return await asyncio.to_thread(read)

    async def is_ready(self) -> bool:
        return await self.get("/readyz") == "ok\n"

    async def names(self, part: str) -> bool:
        """Whether /readyz names the part and the cause, and no other part for that cause."""
        text = await self.get("/readyz")
        caused = [line for line in text.splitlines() if _CAUSE in line]
        return len(caused) == 1 and caused[0].startswith(f"{part}: ")

    async def number(self, name: str, **labels: str) -> float:
        label = ",".join(f'{key}="{value}"' for key, value in labels.items())
        found = re.search(rf"^{re.escape(f'{name}{{{label}}}')} (\S+)$", await self.get("/metrics"), re.MULTILINE)
        assert found is not None, f"{name} of {labels}"
        return float(found[1])


@contextlib.asynccontextmanager
async def _run(start: Callable[[asyncio.Future[str]], asyncio.Task[None]]) -> AsyncIterator[_Running]:
    url = asyncio.get_running_loop().create_future()
    task = start(url)
    try:
        await asyncio.wait((task, url), return_when=asyncio.FIRST_COMPLETED)
        yield _Running(url.result(), task)
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def _is_logged(lines: list[Any], event: str, **values: str) -> bool:
    return any(line["event"] == event and values.items() <= line.items() for line in lines)


@pytest_asyncio.fixture
async def home(quiet_cluster: Cluster, quiet_api: Api) -> AsyncIterator[str]:
    """A namespace to be installed in, and a policy."""
    await asyncio.to_thread(install_policies, quiet_cluster)
    name = f"home-{secrets.token_hex(4)}"
    await quiet_api.create(NAMESPACES, {"metadata": {"name": name}})

    async def is_created() -> bool:
        with contextlib.suppress(ApiError):
            await quiet_api.create(SLICE_POLICIES, policy(name))
            return True
        return False

    # The API server calls the webhook of the test before for a moment after its configuration was deleted.
    await until(is_created)
    yield name
    await quiet_api.delete(SLICE_POLICIES, name)
    for resource in (MUTATING, VALIDATING):
        with contextlib.suppress(ApiError):
            await quiet_api.delete(resource, name)


@contextlib.asynccontextmanager
async def _controller(api: Api, home: str) -> AsyncIterator[_Running]:
    webhooks = Webhooks(target=Address(url="https://127.0.0.1:1"), excluded_namespaces=("kube-system", home))
    installation = Installation(webhooks=webhooks, namespace=home, name=home)
    settings = Settings(namespace=home, identity="test", address="127.0.0.1", port=0, installation=installation)

    def start(url: asyncio.Future[str]) -> asyncio.Task[None]:
        return asyncio.create_task(Controller(api, settings).run(url.set_result))

    async with _run(start) as running:
        yield running


@pytest.mark.parametrize(
    ("part", "owner", "name"),
    [
        ("policy-status", policy_status, "_accepted"),
        ("webhook-configurations", webhook_configurations, "refusing_namespaces"),
    ],
)
async def test_a_reconciler_of_the_controller_that_fails_tries_again(
    monkeypatch: pytest.MonkeyPatch, quiet_api: Api, home: str, logged: list[Any], part: str, owner: object, name: str
) -> None:
    fault = _Fault(monkeypatch, owner, name)
    fault.begin()
    async with _controller(quiet_api, home) as controller:
        await until(lambda: controller.names(part), f"/readyz names {part}")
        assert await controller.get("/healthz") == "ok\n", "a new process would not do better"
        await until(lambda: _is_logged(logged, "work on a key failed; trying again", queue=part))
        assert await controller.number("gpuslice_workqueue_retries_total", queue=part) >= 1
        fault.mend()
        await until(controller.is_ready, "it works again")


async def test_the_controller_goes_on_when_events_fail(
    monkeypatch: pytest.MonkeyPatch, quiet_api: Api, home: str, logged: list[Any]
) -> None:
    fault = _Fault(monkeypatch, Recorder, "_tell_series")
    fault.begin()
    async with _controller(quiet_api, home) as controller:
        await until(lambda: controller.names("events"), "/readyz names events")
        assert await controller.get("/healthz") == "ok\n"
        assert _is_logged(logged, "a part failed, and is started again", part="events")
        assert await controller.number("gpuslice_part_failures_total", part="events") >= 1
        fault.mend()
        await until(controller.is_ready, "it works again")
        assert await controller.number("gpuslice_part_restarts_total", part="events") >= 1


async def test_the_controller_ends_when_its_informers_fail(
    monkeypatch: pytest.MonkeyPatch, quiet_api: Api, home: str, logged: list[Any]
) -> None:
    async with _controller(quiet_api, home) as controller:
        await until(controller.is_ready)
        _Fault(monkeypatch, ListWatch, "_apply").begin()
        await quiet_api.merge(NAMESPACES, home, {"metadata": {"labels": {"team": "vision"}}})
        await asyncio.wait((controller.task,))
        with pytest.raises(PartFailedError, match="the part 'informers' failed"):
            controller.task.result()
    assert _is_logged(logged, "a part failed, and the process ends", part="informers")


@pytest_asyncio.fixture
async def files(tmp_path: Path) -> Path:
    """A certificate, its key, and an authority of clients."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    return tmp_path


@contextlib.asynccontextmanager
async def _webhook(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, home: str, files: Path, *, own: bool
) -> AsyncIterator[_Running]:
    options = Options(address="127.0.0.1", port=0, metrics_port=0, drain_seconds=0)
    callers = webhook_command._Callers(files / "ca.crt", ())
    certificates = webhook_command._OwnCertificates(("localhost",), home, home)
    pair = (files / "tls.crt", files / "tls.key")

    def start(url: asyncio.Future[str]) -> asyncio.Task[None]:
        monkeypatch.setattr(webhook_command, "_say_ready", lambda _reviews, metrics: url.set_result(metrics))
        # This process has other things to collect than a webhook.
        monkeypatch.setattr(webhook_command, "_settle", lambda: None)
        return asyncio.create_task(
            webhook_command._serve_cluster(
                options, callers, certificates if own else pair, cluster.kubeconfig, ClusterSettings()
            )
        )

    async with _run(start) as running:
        yield running


@pytest.mark.parametrize(
    ("part", "owner", "name"),
    [
        ("cluster-state", state, "PolicySet"),
        ("certificate-files", CertificateFiles, "_look"),
        ("client-authority", ClientAuthorityFile, "_look"),
    ],
)
async def test_a_part_of_the_webhook_that_fails_is_started_again(  # noqa: PLR0917 - fixtures
    monkeypatch: pytest.MonkeyPatch,
    quiet_cluster: Cluster,
    quiet_api: Api,
    home: str,
    files: Path,
    logged: list[Any],
    part: str,
    owner: object,
    name: str,
) -> None:
    fault = _Fault(monkeypatch, owner, name)
    async with _webhook(monkeypatch, quiet_cluster, home, files, own=False) as webhook:
        await until(webhook.is_ready)
        fault.begin()
        await quiet_api.merge(SLICE_POLICIES, home, {"spec": {"priority": 7}})
        await until(lambda: webhook.names(part), f"/readyz names {part}")
        assert await webhook.get("/healthz") == "ok\n"
        assert _is_logged(logged, "a part failed, and is started again", part=part)
        assert await webhook.number("gpuslice_part_failures_total", part=part) >= 1
        fault.mend()
        await until(webhook.is_ready, "it works again")
        assert await webhook.number("gpuslice_part_restarts_total", part=part) >= 1


async def test_reviews_are_not_answered_by_policies_that_are_not_in_force_any_more(
    monkeypatch: pytest.MonkeyPatch, quiet_cluster: Cluster, quiet_api: Api, home: str, files: Path
) -> None:
    async with _webhook(monkeypatch, quiet_cluster, home, files, own=False) as webhook:
        await until(webhook.is_ready)
        _Fault(monkeypatch, state, "PolicySet").begin()
        await quiet_api.merge(SLICE_POLICIES, home, {"spec": {"priority": 7}})
        await until(lambda: webhook.names("cluster-state"))
        assert "cluster: it has not been seen as a whole yet\n" in await webhook.get("/readyz")


async def test_the_webhook_goes_on_when_its_certificates_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, quiet_cluster: Cluster, home: str, files: Path, logged: list[Any]
) -> None:
    fault = _Fault(monkeypatch, planning_process, "ask")
    fault.begin()
    async with _webhook(monkeypatch, quiet_cluster, home, files, own=True) as webhook:
        await until(lambda: webhook.names("certificates"), "/readyz names certificates")
        assert "certificate: there is none to serve with yet\n" in await webhook.get("/readyz")
        assert await webhook.get("/healthz") == "ok\n"
        assert _is_logged(logged, "work on a key failed; trying again", queue="certificates")
        assert await webhook.number("gpuslice_workqueue_retries_total", queue="certificates") >= 1
        fault.mend()
        await until(webhook.is_ready, "it works again")


async def test_the_webhook_ends_when_its_informers_fail(
    monkeypatch: pytest.MonkeyPatch, quiet_cluster: Cluster, quiet_api: Api, home: str, files: Path, logged: list[Any]
) -> None:
    async with _webhook(monkeypatch, quiet_cluster, home, files, own=False) as webhook:
        await until(webhook.is_ready)
        _Fault(monkeypatch, ListWatch, "_apply").begin()
        await quiet_api.merge(SLICE_POLICIES, home, {"spec": {"priority": 7}})
        await asyncio.wait((webhook.task,))
        with pytest.raises(PartFailedError, match="the part 'informers' failed"):
            webhook.task.result()
    assert _is_logged(logged, "a part failed, and the process ends", part="informers")
    assert _is_logged(logged, "stopped"), "reviews that had begun were answered first"
