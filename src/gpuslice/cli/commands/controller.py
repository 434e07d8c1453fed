"""`gpuslice controller`: what one process does for the whole cluster."""

from __future__ import annotations

import asyncio
import os
import socket
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuslice.cli import output
from gpuslice.cli.options import logging
from gpuslice.cli.options.configuration import Flag, configured

if TYPE_CHECKING:
    from gpuslice.configuration.effective import Effective
    from gpuslice.controller.accounting import LedgerSettings
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
    Flag("--ledger", "ledger.address"),
    Flag("--log", "logging.form"),
)
@click.option("--identity", metavar="NAME", help="Its name among the controllers.  [default: host and process]")
def command(effective: Effective, identity: str | None) -> None:
    """Run the controller of a cluster.

    Several may run; one at a time works, and the next takes over when it ends. It makes the claim
    templates that admitted pods need, without which they do not start, and removes those that no pod uses. It says in
    the status of each SlicePolicy whether that is in force. With --webhook-service or
    --webhook-url it also keeps the webhook configurations: it restores them, and has the API server refuse pods that no
    webhook has seen where a policy says so. With --ledger it meters who holds GPUs for how long, and says in the status
    of each GPUBudget what is left of it.

    \b
    Example:
      gpuslice controller --kubeconfig ~/.kube/config --namespace gpuslice-system
      gpuslice controller --namespace gpuslice-system --webhook-service gpuslice-system/gpuslice-webhook
      gpuslice controller --ledger sqlite:/var/lib/gpuslice/ledger.sqlite3
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
                ledger=ledger_of(effective),
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


def ledger_of(effective: Effective) -> LedgerSettings | None:
    """Where GPU time is kept. None: nowhere."""
    from gpuslice.accounting.charges import ChargeBy
    from gpuslice.accounting.published_gpus import SlotParts
    from gpuslice.controller.accounting import LedgerSettings
    from gpuslice.model.values import durations

    ledger, budgets = effective.configuration.ledger, effective.configuration.budgets
    if ledger.address is None:
        return None
    gpus = effective.configuration.gpus
    return LedgerSettings(
        address=ledger.address,
        charge_by=ChargeBy(ledger.charge_by),
        prices={model: round(Decimal(price) * 1_000_000) for model, price in ledger.prices.items()},
        slots=SlotParts(gpus.shared_resource, gpus.whole_resource, gpus.slots_per_gpu),
        sample_seconds=durations.parse_seconds(ledger.sample),
        keep_entries_ms=round(durations.parse_seconds(ledger.keep_entries) * 1000),
        keep_hours_ms=round(durations.parse_seconds(ledger.keep_hours) * 1000),
        gpu_minutes_per_namespace=budgets.gpu_minutes_per_namespace,
        period=budgets.period,
        time_zone=budgets.time_zone,
    )


def _say_ready(url: str) -> None:
    output.announce(f"gpuslice controller is up: {url}/healthz, {url}/metrics")
