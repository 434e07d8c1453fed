"""`gpuslice controller`: what one process does for the whole cluster."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuslice.cli import output
from gpuslice.cli.options import logging
from gpuslice.cli.options.configuration import Flag, configured

if TYPE_CHECKING:
    from gpuslice.configuration.effective import Effective
    from gpuslice.controller.reconcilers.webhook_configurations import Installation


@click.command()
@configured(
    Flag("--kubeconfig", "cluster.kubeconfig"),
    Flag("--namespace", "cluster.namespace"),
    Flag("--address", "controller.address"),
    Flag("--port", "controller.port"),
    Flag("--template-grace", "controller.templateGrace"),
    Flag("--webhook-service", "webhook.registration.service"),
    Flag("--webhook-url", "webhook.registration.url"),
    Flag("--configuration", "webhook.registration.name"),
    Flag("--exclude-namespace", "webhook.registration.excludedNamespaces"),
    Flag("--inject-ca-from", "webhook.registration.certificate"),
    Flag("--log", "logging.form"),
)
@click.option("--identity", metavar="NAME", help="Its name among the controllers.  [default: host and process]")
def command(effective: Effective, identity: str | None) -> None:
    """Run the controller of a cluster.

    Several may run; one at a time works, and the next takes over when it ends. It makes the claim
    templates that admitted pods need, without which they do not start, and removes those that no pod uses. It says in
    the status of each SlicePolicy whether that is in force. With --webhook-service or
    --webhook-url it also keeps the webhook configurations: it restores them, and has the API server refuse pods that no
    webhook has seen where a policy says so.

    \b
    Example:
      gpuslice controller --kubeconfig ~/.kube/config --namespace gpuslice-system
      gpuslice controller --namespace gpuslice-system --webhook-service gpuslice-system/gpuslice-webhook
      gpuslice controller --config deploy/configuration.yaml
    """
    from gpuslice.controller.manager import Controller, Settings
    from gpuslice.kube import server_version
    from gpuslice.kube.client.api import connect

    configuration = effective.configuration
    logging.configure(configuration.logging)
    kubeconfig = None if configuration.cluster.kubeconfig is None else Path(configuration.cluster.kubeconfig)

    async def serve() -> None:
        async with connect(kubeconfig, os.environ, "controller") as api:
            home = configuration.cluster.namespace or api.namespace
            started_with = Settings(
                namespace=home,
                identity=identity or f"{socket.gethostname()}_{os.getpid()}",
                address=configuration.controller.address,
                port=configuration.controller.port,
                grace=configuration.controller.template_grace_seconds,
                excluded=excluded_namespaces(home, effective),
                installation=installation_of(home, effective),
            )
            server_version.check(await server_version.ask(api))
            await Controller(api, started_with).run(_say_ready)

    asyncio.run(serve())


def excluded_namespaces(home: str, effective: Effective) -> tuple[str, ...]:
    """Those about whose pods the API server does not ask."""
    from gpuslice.admission.registration.excluded_namespaces import by_default

    return effective.configuration.webhook.registration.excluded_namespaces or by_default(home)


def installation_of(home: str, effective: Effective) -> Installation | None:
    """Whose webhook configurations are to be kept. None without a webhook."""
    from gpuslice.admission.registration.webhook_configurations import Address, Service, Webhooks
    from gpuslice.controller.reconcilers.webhook_configurations import Installation

    registration = effective.configuration.webhook.registration
    target: Service | Address
    if registration.service is not None:
        namespace, _, name = registration.service.partition("/")
        target = Service(namespace=namespace, name=name)
    elif registration.url is not None:
        target = Address(url=registration.url)
    else:
        return None
    webhooks = Webhooks(
        target=target,
        settings=effective.settings,
        excluded_namespaces=excluded_namespaces(home, effective),
        refuse_unreviewed=registration.failure_policy == "Fail",
        certificate=registration.certificate,
    )
    return Installation(webhooks=webhooks, namespace=home, name=registration.name)


def _say_ready(url: str) -> None:
    output.announce(f"gpuslice controller is up: {url}/healthz, {url}/metrics")
