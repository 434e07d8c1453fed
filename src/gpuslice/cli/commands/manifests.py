"""`gpuslice manifests`: what to apply to a cluster to install gpuslice."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

import click
import msgspec

from gpuslice.admission.registration import mutating_policy
from gpuslice.cli.manifests import documents
from gpuslice.cli.options.configuration import Flag, configured
from gpuslice.cli.options.parameters import InputFile
from gpuslice.installing import parts
from gpuslice.installing.options import NAMESPACE, Options, default_image
from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from typing import BinaryIO

    from gpuslice.configuration.effective import Effective


#: As container runtimes read it: registry, path, tag and digest; what is before the path may have a port.
_IMAGE: Final = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)


def _read_authority(_context: click.Context, _parameter: click.Parameter, file: BinaryIO | None) -> str:
    if file is None:
        return ""
    text = documents.decode(file.read(), file.name)
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise GpusliceError(
            f"{file.name}: there is no certificate in it: give a PEM file, for example front-proxy-ca.crt"
        )
    return text


def _read_image(_context: click.Context, _parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and _IMAGE.fullmatch(name) is None:
        raise click.BadParameter(f"{name!r} is no image: write for example registry.example/gpuslice:1")
    return name


def _read_networks(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(str(ip_network(text)) for text in texts)
    except ValueError as error:
        raise click.BadParameter(f"{error}; write for example 10.244.0.0/16") from None


@click.command()
@configured(
    Flag(
        "--namespace",
        "cluster.namespace",
        also=("-n",),
        help=f"Where gpuslice itself runs.  [default: {NAMESPACE}]",
    ),
    Flag("--node-backend", "gpus.backend"),
    Flag(
        "--url",
        "webhook.registration.url",
        help="Print what a webhook outside of the cluster needs there; the API server reaches it at this address.",
    ),
)
@click.option(
    "--image", metavar="NAME", callback=_read_image,
    help="The container image, where your nodes can pull it.  [default: this version's, which no registry has]",
)  # fmt: skip
@click.option("--cert-manager", is_flag=True, help="Let cert-manager make the webhook's certificates.")
@click.option(
    "--client-authority", metavar="FILE", type=InputFile("rb"), callback=_read_authority,
    help="Who signs the API servers' client certificates, as PEM: the webhook then takes reviews from them alone.",
)  # fmt: skip
@click.option(
    "--pod-network", "pod_networks", metavar="CIDR", multiple=True, callback=_read_networks,
    help="Addresses of pods, from which no API server calls: the webhook's NetworkPolicy keeps them out; may be given "
    "several times.",
)  # fmt: skip
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
    effective: Effective,
    image: str | None,
    cert_manager: bool,
    client_authority: str,
    pod_networks: tuple[str, ...],
    only: tuple[str, ...],
    admission_policy: bool,
    output: str,
) -> None:
    """Print what installs gpuslice on a cluster of Kubernetes 1.31 or later.

    The webhook makes its own certificates, and renews them, unless cert-manager is to. With the address of a webhook
    outside of the cluster, it prints what that needs there. The configuration is stored in the cluster, where webhook,
    controller and agents read it; gpuslice runs in the namespace gpuslice-system unless it says otherwise.

    \b
    Example:
      gpuslice manifests | kubectl apply -f -
      gpuslice manifests --image registry.example/gpuslice:1 --cert-manager
      gpuslice manifests --client-authority /etc/kubernetes/pki/front-proxy-ca.crt --pod-network 10.244.0.0/16
      gpuslice manifests --only crds --only classes -o json
      gpuslice manifests --config deploy/configuration.yaml | kubectl apply -f -
      gpuslice manifests --admission-policy | kubectl apply -f -
      gpuslice manifests --url https://webhook.example:8443 | kubectl apply -f -
    """
    url = effective.configuration.webhook.registration.url
    if admission_policy and (only or cert_manager or url):
        raise click.UsageError("--admission-policy stands alone: it installs no webhook")
    if url and (client_authority or pod_networks):
        raise click.UsageError(
            "--client-authority and --pod-network are for a webhook in the cluster: with --url, start it with "
            "--client-authority"
        )
    if url and cert_manager:
        raise click.UsageError("--cert-manager is for a webhook in the cluster: with --url, start it with --host")
    options = Options(
        namespace=effective.configuration.cluster.namespace or NAMESPACE,
        image=default_image() if image is None else image,
        cert_manager=cert_manager,
        url=url,
        said=effective.said,
        client_authority=client_authority,
        pod_networks=pod_networks,
    )
    if admission_policy:
        objects = mutating_policy.documents(options.settings, options.webhooks.excluded_namespaces)
    else:
        objects = parts.objects(options, only)
    if output == "json":
        listed = {"apiVersion": "v1", "kind": "List", "items": objects}
        printed = msgspec.json.format(msgspec.json.encode(listed), indent=2).decode() + "\n"
    else:
        printed = text(objects)
    if image is None and options.image in printed:
        click.echo(
            f"warning: no registry has the image {options.image}: push one that your nodes can pull, and give its name "
            "with --image",
            err=True,
        )
    click.echo(printed, nl=False)


def text(objects: list[dict[str, object]]) -> str:
    """As one file of many documents."""
    return documents.join(documents.write(each) for each in objects)
