"""How to reach the cluster, and as whom: a kubeconfig file, or the service account of the pod that we run in."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice.kube.client.tokens import NoToken, TokenFile
from gpuslice.kube.errors import CredentialsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.kube.client.tokens import TokenSource

REMEDY: Final = "give a file with --kubeconfig or $KUBECONFIG, or run in a pod that has a service account"
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Where the API server is, why it is believed, and how we say who we are."""

    server: str
    #: None without TLS.
    tls: ssl.SSLContext | None
    #: The name that the server's certificate must have, where it is not that of the address.
    server_name: str = ""
    token: TokenSource = field(default_factory=NoToken)
    namespace: str = "default"


def load(path: Path | None, environment: Mapping[str, str]) -> Credentials:
    """In this order: the file that is given, the files in $KUBECONFIG, the pod's service account, ~/.kube/config."""
    # A pod has its service account, and no use for what reads files.
    from gpuslice.kube.client import kubeconfig

    # An empty place in the list is none, and a file that is named twice is one: so kubectl has it.
    named = dict.fromkeys(Path(each) for each in environment.get("KUBECONFIG", "").split(":") if each)
    if path is not None:
        return kubeconfig.load(path)
    if named:
        return kubeconfig.load(*named)
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return of_service_account(environment)
    usual = Path.home() / ".kube" / "config"
    if not usual.is_file():
        raise CredentialsError(f"no cluster is known: {REMEDY}")
    return kubeconfig.load(usual)


def of_service_account(environment: Mapping[str, str], folder: Path = _SERVICE_ACCOUNT) -> Credentials:
    """What the kubelet gives every pod. It replaces the token in time."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    token = TokenFile(folder / "token")
    try:
        token.read()
        namespace = (folder / "namespace").read_text().strip()
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except (OSError, ssl.SSLError) as error:
        raise CredentialsError(
            f"the service account for the cluster at {host} cannot be read ({error}): {REMEDY}"
        ) from None
    where = f"[{host}]" if ":" in host else host
    return Credentials(server=f"https://{where}:{port}", tls=tls, token=token, namespace=namespace)
