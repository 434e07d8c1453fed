"""`gpuslice manifests`: what to apply to a cluster to install gpuslice."""

from __future__ import annotations

import click
import msgspec

from gpuslice.admission import mutating_policy
from gpuslice.cli import documents
from gpuslice.installing import parts
from gpuslice.installing.options import NAMESPACE, Options, default_image


@click.command()
@click.option("-n", "--namespace", default=NAMESPACE, show_default=True, help="Where gpuslice itself runs.")
@click.option("--image", metavar="NAME", default=default_image, help="The container image.  [default: this version's]")
@click.option("--cert-manager", is_flag=True, help="Let cert-manager make the webhook's certificates.")
@click.option(
    "--only", "only", type=click.Choice(list(parts.PARTS)), multiple=True,
    help="Print only this part; may be given several times.",
)  # fmt: skip
@click.option(
    "--admission-policy", is_flag=True,
    help="Print CastSlice's rewrite as a policy of the API server's own, which needs nothing else installed.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="Form.")
def command(
    namespace: str,
    image: str,
    cert_manager: bool,
    only: tuple[str, ...],
    admission_policy: bool,
    output: str,
) -> None:
    """Print what installs gpuslice on a cluster of Kubernetes 1.36 or later.

    The webhook makes its own certificates, and renews them, unless cert-manager is to.

    \b
    Example:
      gpuslice manifests | kubectl apply -f -
      gpuslice manifests --image registry.example/gpuslice:1 --cert-manager
      gpuslice manifests --only crds --only classes -o json
      gpuslice manifests --admission-policy | kubectl apply -f -
    """
    if admission_policy and (only or cert_manager):
        raise click.UsageError("--admission-policy stands alone: it installs no webhook")
    options = Options(namespace=namespace, image=image, cert_manager=cert_manager)
    if admission_policy:
        objects = mutating_policy.documents(options.settings, options.webhooks.excluded_namespaces)
    else:
        objects = parts.objects(options, only)
    if output == "json":
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        click.echo(msgspec.json.format(msgspec.json.encode(listed), indent=2).decode())
    else:
        click.echo(text(objects), nl=False)


def text(objects: list[dict[str, object]]) -> str:
    """As one file of many documents."""
    return "---\n".join(documents.write(each) for each in objects)
