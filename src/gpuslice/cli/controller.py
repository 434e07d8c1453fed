"""`gpuslice controller`: what one process does for the whole cluster."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import click

from gpuslice.cli import parameters


@click.command()
@click.option(
    "--kubeconfig",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Reach the cluster as it says.  [default: $KUBECONFIG, the pod's service account, ~/.kube/config]",
)
@click.option("--namespace", metavar="NAME", help="Where the lease is kept.  [default: that of the credentials]")
@click.option("--identity", metavar="NAME", help="Who this is among the controllers.  [default: host and process]")
@click.option("--address", metavar="ADDR", default="", help="Serve /healthz and /metrics there.  [default: everywhere]")
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
    "--log", "form", type=click.Choice(["console", "json"]), default="console", show_default=True, help="Form."
)
def command(
    kubeconfig: Path | None,
    namespace: str | None,
    identity: str | None,
    address: str,
    port: int,
    template_grace: float,
    form: str,
) -> None:
    """Run the controller of a cluster.

    Several may run; one at a time works, and the next takes over when it ends. It removes claim templates that
    no pod uses, and says in the status of each SlicePolicy whether that is in force.

    \b
    Example:
      gpuslice controller --kubeconfig ~/.kube/config --namespace gpuslice-system
    """
    from gpuslice.admission.templates import MINIMUM_GRACE
    from gpuslice.controller.controller import Controller, Settings
    from gpuslice.kube.api import connect
    from gpuslice.node import logs

    if template_grace < MINIMUM_GRACE:
        raise click.BadParameter(
            f"a pod may be on its way that needs a template: write at least {MINIMUM_GRACE:.0f}s",
            param_hint="--template-grace",
        )
    logs.configure(form, debug=os.environ.get("GPUSLICE_DEBUG", "") not in ("", "0"))

    async def serve() -> None:
        async with connect(kubeconfig, os.environ, "controller") as api:
            settings = Settings(
                namespace=namespace or api.namespace,
                identity=identity or f"{socket.gethostname()}_{os.getpid()}",
                address=address,
                port=port,
                grace=template_grace,
            )
            await Controller(api, settings).run(_say_ready)

    asyncio.run(serve())


def _say_ready(url: str) -> None:
    click.echo(f"gpuslice controller is up: {url}/healthz, {url}/metrics")
    sys.stdout.flush()
