"""`gpuslice controller`: what one process does for the whole cluster."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuslice.cli.options import parameters
from gpuslice.cli.options.settings import settings_option

if TYPE_CHECKING:
    from gpuslice.controller.reconcilers.webhook_configurations import Installation
    from gpuslice.dialects.settings_file import SettingsFile


@click.command()
@click.option(
    "--kubeconfig",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Reach the cluster as it says.  [default: $KUBECONFIG, the pod's service account, ~/.kube/config]",
)
@click.option("--namespace", metavar="NAME", help="Where the lease is kept.  [default: that of the credentials]")
@click.option("--identity", metavar="NAME", help="Who this is among the controllers.  [default: host and process]")
@click.option(
    "--address", metavar="ADDR", default="", help="Serve /healthz, /readyz and /metrics there.  [default: all]"
)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="At this port.")
@click.option(
    "--template-grace",
    metavar="DURATION",
    callback=parameters.duration,
    default="10m",
    show_default=True,
    help="How long a claim template stays that no pod uses.",
)
@click.option(
    "--webhook-service",
    metavar="NAMESPACE/NAME",
    help="Keep the webhook configurations, for the webhook behind this Service.",
)
@click.option("--webhook-url", metavar="URL", help="The same, for a webhook outside of the cluster.")
@click.option(
    "--configuration",
    metavar="NAME",
    default="gpuslice",
    show_default=True,
    help="With a webhook: what its configurations are called.",
)
@click.option(
    "--exclude-namespace",
    "excluded",
    metavar="NAME",
    multiple=True,
    help="With a webhook: leave pods there alone; may be given several times.  [default: kube-system and --namespace]",
)
@click.option(
    "--inject-ca-from",
    metavar="NAMESPACE/NAME",
    help="With a webhook: cert-manager keeps the bundles of authorities, by this Certificate.",
)
@settings_option
@click.option(
    "--log", "form", type=click.Choice(["console", "json"]), default="console", show_default=True, help="Form."
)
def command(  # noqa: PLR0913, PLR0917 - options
    kubeconfig: Path | None,
    namespace: str | None,
    identity: str | None,
    address: str,
    port: int,
    template_grace: float,
    webhook_service: str | None,
    webhook_url: str | None,
    configuration: str,
    excluded: tuple[str, ...],
    inject_ca_from: str | None,
    settings: SettingsFile,
    form: str,
) -> None:
    """Run the controller of a cluster.

    Several may run; one at a time works, and the next takes over when it ends. It removes claim templates that
    no pod uses, and says in the status of each SlicePolicy whether that is in force. With --webhook-service or
    --webhook-url it also keeps the webhook configurations: it restores them, and has the API server refuse pods that no
    webhook has seen where a policy says so.

    \b
    Example:
      gpuslice controller --kubeconfig ~/.kube/config --namespace gpuslice-system
      gpuslice controller --namespace gpuslice-system --webhook-service gpuslice-system/gpuslice-webhook
    """
    from gpuslice.admission.cluster.claim_templates import MINIMUM_GRACE
    from gpuslice.controller.manager import Controller, Settings
    from gpuslice.kube.api import connect
    from gpuslice.system import logs

    if template_grace < MINIMUM_GRACE:
        raise click.BadParameter(
            f"a pod may be on its way that needs a template: write at least {MINIMUM_GRACE:.0f}s",
            param_hint="--template-grace",
        )
    if webhook_service and webhook_url:
        raise click.UsageError("where is the webhook? Give --webhook-service or --webhook-url, not both")
    if webhook_service and not all(webhook_service.partition("/")):
        raise click.BadParameter("write for example gpuslice-system/gpuslice-webhook", param_hint="--webhook-service")
    logs.configure(form, debug=os.environ.get("GPUSLICE_DEBUG", "") not in ("", "0"))

    async def serve() -> None:
        async with connect(kubeconfig, os.environ, "controller") as api:
            home = namespace or api.namespace
            started_with = Settings(
                namespace=home,
                identity=identity or f"{socket.gethostname()}_{os.getpid()}",
                address=address,
                port=port,
                grace=template_grace,
                installation=installation_of(
                    home=home,
                    webhook_service=webhook_service,
                    webhook_url=webhook_url,
                    configuration=configuration,
                    excluded=excluded,
                    inject_ca_from=inject_ca_from,
                    settings=settings,
                ),
            )
            await Controller(api, started_with).run(_say_ready)

    asyncio.run(serve())


def installation_of(
    *,
    home: str,
    webhook_service: str | None,
    webhook_url: str | None,
    configuration: str,
    excluded: tuple[str, ...],
    inject_ca_from: str | None,
    settings: SettingsFile,
) -> Installation | None:
    """Whose webhook configurations are to be kept. None without a webhook."""
    from gpuslice.admission.registration.webhook_configurations import Address, Service, Webhooks
    from gpuslice.controller.reconcilers.webhook_configurations import Installation

    target: Service | Address
    if webhook_service is not None:
        namespace, _, name = webhook_service.partition("/")
        target = Service(namespace=namespace, name=name)
    elif webhook_url is not None:
        target = Address(url=webhook_url)
    else:
        return None
    webhooks = Webhooks(
        target=target,
        settings=settings.settings,
        excluded_namespaces=excluded or ("kube-system", home),
        certificate=inject_ca_from,
    )
    return Installation(webhooks=webhooks, namespace=home, name=configuration)


def _say_ready(url: str) -> None:
    click.echo(f"gpuslice controller is up: {url}/healthz, {url}/metrics")
    sys.stdout.flush()
