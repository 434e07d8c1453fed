"""`gpuslice webhook`: the admission webhook's server."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpuslice.cli import output
from gpuslice.cli.options import logging
from gpuslice.cli.options.configuration import Flag, configured
from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from gpuslice.admission.context import Context
    from gpuslice.admission.webhook.cluster_view import Cluster
    from gpuslice.admission.webhook.server import Options
    from gpuslice.configuration.effective import Effective
    from gpuslice.http.serving_certificate import ServingCertificate
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informers
    from gpuslice.model.settings import Settings
    from gpuslice.pki.certificate_keeper import CertificateKeeper


#: A thread with a large review lets the others go on after so long.
_SWITCH_SECONDS: Final = 0.0005


@click.command()
@configured(
    Flag("--port", "webhook.port"),
    Flag("--metrics-port", "webhook.metricsPort"),
    Flag("--address", "webhook.address"),
    Flag("--certificate", "webhook.certificate"),
    Flag("--key", "webhook.key"),
    Flag("--host", "webhook.hosts"),
    Flag("--client-authority", "webhook.clientAuthority"),
    Flag("--client-name", "webhook.clientNames"),
    Flag("--configuration", "webhook.registration.name"),
    Flag("--namespace", "cluster.namespace"),
    Flag("--policies", "webhook.policies", also=("--policy",)),
    Flag("--kubeconfig", "cluster.kubeconfig"),
    Flag("--drain", "webhook.drain"),
    Flag("--max-body", "webhook.maxBody"),
    Flag("--max-connections", "webhook.maxConnections"),
    Flag("--log", "logging.form"),
)
def command(effective: Effective) -> None:
    """Serve the admission webhook: POST /mutate, /validate, /validate-quota and /validate-policy.

    The certificate's files and the authority's are read again when they change. On SIGTERM the server says that it is
    not ready, goes on answering for a while, and ends when the last request is answered; a new one can listen on the
    same ports in the meantime.

    The configuration is read at the start; the webhook configurations depend on it, so give the same file to
    `gpuslice manifests`. Without a cluster it decides by the policies that it is given.

    \b
    Example:
      gpuslice webhook --certificate tls.crt --key tls.key
      gpuslice webhook --config deploy/configuration.yaml --certificate tls.crt --key tls.key
      gpuslice webhook --certificate tls.crt --key tls.key --policies policy.yaml --port 9443
      gpuslice manifests --url https://webhook.example:8443 | kubectl apply -f -
      gpuslice webhook --kubeconfig ~/.kube/config --namespace gpuslice-system --host webhook.example
      curl --cacert ca.crt -H 'Content-Type: application/json' -d @review.json https://localhost:8443/mutate
    """
    configuration = effective.configuration
    webhook = configuration.webhook
    kubeconfig = None if configuration.cluster.kubeconfig is None else Path(configuration.cluster.kubeconfig)
    in_cluster = not webhook.policies and (kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in os.environ)
    files = (Path(webhook.certificate), Path(webhook.key)) if webhook.certificate is not None and webhook.key else None
    if files is None and not webhook.hosts:
        raise click.UsageError(
            "which certificate? Give --certificate and --key, for example tls.crt and tls.key, or --host for its own"
        )
    if webhook.hosts and not in_cluster:
        raise click.UsageError("--host keeps certificates in a cluster: give --kubeconfig as well")
    logging.configure(configuration.logging)

    import uvloop

    from gpuslice.admission.webhook.server import Options
    from gpuslice.http.connection import Limits

    options = Options(
        address=webhook.address,
        port=webhook.port,
        metrics_port=webhook.metrics_port,
        max_connections=webhook.max_connections,
        drain_seconds=webhook.drain_seconds,
        limits=Limits(body_bytes=webhook.max_body_bytes),
    )
    callers = _Callers(
        None if webhook.client_authority is None else Path(webhook.client_authority), webhook.client_names
    )
    if in_cluster:
        own = _OwnCertificates(webhook.hosts, webhook.registration.name, configuration.cluster.namespace)
        home = configuration.cluster.namespace
        uvloop.run(_serve_cluster(options, callers, files or own, kubeconfig, effective.settings, home))
    else:
        assert files is not None, "checked above"
        uvloop.run(_serve_alone(options, callers, files, _context(webhook.policies, effective.settings)))


@dataclass(frozen=True, slots=True)
class _Callers:
    """Which clients are API servers."""

    authority: Path | None
    names: tuple[str, ...]

    def load(self, process: _Process) -> None:
        """Puts the authority in force, if one is meant, and follows its changes."""
        from gpuslice.http.certificate_files import ClientAuthorityFile
        from gpuslice.system.supervised.supervision import Restart

        if self.authority is None:
            return
        file = ClientAuthorityFile(self.authority, self.names, process.identity)
        file.load_if_there()
        # What was loaded last stays in force meanwhile, and following the file needs nothing but the file.
        process.supervisor.add("client-authority", file.follow, Restart())


@dataclass(frozen=True, slots=True)
class _OwnCertificates:
    """Certificates that the webhook makes itself."""

    hosts: tuple[str, ...]
    configuration: str
    namespace: str | None

    def keeper(self, api: Api, informers: Informers, identity: ServingCertificate) -> CertificateKeeper:
        from gpuslice.pki.certificate_keeper import CertificateKeeper, Owner
        from gpuslice.pki.trust import MUTATING, VALIDATING

        owner = Owner(
            namespace=self.namespace or api.namespace,
            names=self.hosts,
            configurations=[(MUTATING, self.configuration), (VALIDATING, self.configuration)],
        )
        return CertificateKeeper(api, informers, owner, identity.set_certificate)


class _Process:
    """What all parts of the process share."""

    def __init__(self) -> None:
        from gpuslice.admission.webhook.metrics import Metrics
        from gpuslice.http.serving_certificate import ServingCertificate
        from gpuslice.system.supervised.health import Health
        from gpuslice.system.supervised.supervision import SupervisionMetrics, Supervisor

        self.identity: Final = ServingCertificate()
        self.metrics: Final = Metrics()
        self.health: Final = Health()
        self.supervision: Final = SupervisionMetrics(self.metrics.registry)
        self.supervisor: Final = Supervisor(self.health, self.supervision)

    def load_files(self, certificate: Path, key: Path) -> None:
        """Serves with a certificate from files, and follows their changes."""
        from gpuslice.http.certificate_files import CertificateFiles
        from gpuslice.system.supervised.supervision import Restart

        files = CertificateFiles(certificate, key, self.identity)
        files.load()
        # As for the client authority.
        self.supervisor.add("certificate-files", files.follow, Restart())

    async def serve(self, options: Options, cluster: Cluster) -> None:
        """Until a signal. If a part fails that ends the process, reviews that have begun are answered first."""
        from gpuslice.admission.webhook.server import Webhook

        webhook = Webhook(options, cluster, self.identity, self.metrics, self.health)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, webhook.stop)
        loop.add_signal_handler(signal.SIGINT, lambda: webhook.stop(hurry=True))
        _settle()
        serving = webhook.run(_say_ready)
        await self.supervisor.run(_drain_if_cancelled(serving, webhook.stop))


async def _drain_if_cancelled(serving: Coroutine[Any, Any, None], stop: Callable[[], None]) -> None:
    task = asyncio.create_task(serving)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()
        await task
        raise


async def _serve_alone(options: Options, callers: _Callers, files: tuple[Path, Path], context: Context) -> None:
    from gpuslice.admission.webhook.cluster_view import StaticCluster

    process = _Process()
    process.load_files(*files)
    callers.load(process)
    await process.serve(options, StaticCluster(context))


async def _serve_cluster(
    options: Options,
    callers: _Callers,
    source: tuple[Path, Path] | _OwnCertificates,
    kubeconfig: Path | None,
    settings: Settings,
    home: str | None = None,
) -> None:
    from gpuslice.admission.cluster.state import ClusterState
    from gpuslice.kube.client import credentials
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informers
    from gpuslice.kube.reconciler import Manager
    from gpuslice.system.supervised.supervision import Restart

    process = _Process()
    async with Api(credentials.load(kubeconfig, os.environ), "webhook") as api:
        informers = Informers(api)
        state = ClusterState(api, informers, settings, home=home or api.namespace)
        callers.load(process)
        reconcilers = []
        if isinstance(source, _OwnCertificates):
            reconcilers.append(source.keeper(api, informers, process.identity))
        else:
            process.load_files(*source)
        manager = Manager(
            informers,
            process.health,
            process.metrics.registry,
            reconcilers,
            supervision=process.supervision,
            needs_server=False,
        )
        manager.add_to(process.supervisor)
        # The state says itself that it is not synced while no context can be made, and reviews are not answered by an
        # old one; the informers know everything that the next try needs.
        process.supervisor.add("cluster-state", state.run, Restart(shortest=0.2, longest=5.0))
        await process.serve(options, state)


def _settle() -> None:
    """What concerns the process as a whole."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    # What is loaded stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()


def _context(policies: tuple[str, ...], settings: Settings) -> Context:
    from gpuslice.admission.context import Context

    if not policies:
        return Context(settings=settings)
    from gpuslice.cli.commands.admit import load_policy_files

    try:
        with ExitStack() as opened:
            files = [opened.enter_context(Path(name).open("rb")) for name in policies]
            return Context(settings=settings, policies=load_policy_files(files))
    except OSError as error:
        raise GpusliceError(f"{error.filename} cannot be read: {error.strerror}") from None


def _say_ready(reviews: str, metrics: str) -> None:
    output.announce(f"gpuslice webhook is ready: {reviews}, metrics at {metrics} (pid {os.getpid()})")
