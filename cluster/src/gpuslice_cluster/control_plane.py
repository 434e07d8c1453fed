"""The plan of a control plane: etcd, the API server, the controller manager and the scheduler, all Kubernetes' own."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.installing.options import NAMESPACE, WEBHOOK
from gpuslice_cluster.binaries import program
from gpuslice_cluster.components import Component, Probe
from gpuslice_cluster.pki import Authority, Pair

if TYPE_CHECKING:
    from pathlib import Path

#: As an API server names a webhook's service whose port is 443.
GPUSLICE_WEBHOOKS: Final = (f"{WEBHOOK}.{NAMESPACE}.svc",)
#: Of certificates by which webhooks know the API server; in its folder.
WEBHOOK_AUTHORITY: Final = "pki/webhook-clients"
SERVICE_RANGE: Final = "10.213.0.0/20"
#: The first address of the range: the service `kubernetes`.
SERVICE_ADDRESS: Final = "10.213.0.1"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where everything of a control plane is."""

    folder: Path
    #: Free ports on this machine: etcd's two, the API server's, the controller manager's and the scheduler's.
    ports: tuple[int, int, int, int, int]
    #: Where the API server is reached by pods; loopback if there are none.
    address: str = "127.0.0.1"
    #: Webhooks to which the API server proves who it is: services, and hosts with ports.
    webhooks: tuple[str, ...] = GPUSLICE_WEBHOOKS

    @property
    def server(self) -> str:
        """As this machine reaches it: the address for pods is there only while the node is."""
        return f"https://127.0.0.1:{self.ports[2]}"

    @property
    def server_for_pods(self) -> str:
        return f"https://{self.address}:{self.ports[2]}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "kubeconfig"


def plan(layout: Layout) -> tuple[Component, ...]:
    """Writes keys and kubeconfigs, and returns what is to be run."""
    authority = Authority(layout.folder / "pki")
    hosts = ("localhost", "127.0.0.1", layout.address)
    services = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", SERVICE_ADDRESS)
    serving = authority.issue("apiserver", common_name="kube-apiserver", hosts=(*hosts, *services))
    admin = authority.issue("admin", common_name="admin", groups=("system:masters",))
    write_kubeconfig(layout.kubeconfig, layout.server, authority, admin)
    for name in ("kube-controller-manager", "kube-scheduler"):
        identity = authority.issue(name, common_name=f"system:{name}", hosts=("127.0.0.1",))
        write_kubeconfig(layout.folder / f"{name}.kubeconfig", layout.server, authority, identity)
    return (
        _etcd(layout, authority),
        _api_server(layout, authority, serving, admin),
        _controller_manager(layout, authority),
        _scheduler(layout, authority),
    )


def write_kubeconfig(path: Path, server: str, authority: Authority, identity: Pair) -> None:
    """With everything inside, so that it can be copied elsewhere."""
    document: dict[str, object] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "gpuslice",
        "contexts": [{"name": "gpuslice", "context": {"cluster": "gpuslice", "user": "gpuslice"}}],
        "clusters": [
            {
                "name": "gpuslice",
                "cluster": {"server": server, "certificate-authority-data": _base64(authority.certificate)},
            }
        ],
        "users": [
            {
                "name": "gpuslice",
                "user": {
                    "client-certificate-data": _base64(identity.certificate),
                    "client-key-data": _base64(identity.key),
                },
            }
        ],
    }
    _write_document(path, document)


def _write_document(path: Path, document: dict[str, object]) -> None:
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _etcd(layout: Layout, authority: Authority) -> Component:
    client, peer = (f"https://127.0.0.1:{port}" for port in layout.ports[:2])
    pair = authority.issue("etcd", common_name="etcd", hosts=("127.0.0.1",))
    trust = {"cert-file": pair.certificate, "key-file": pair.key, "trusted-ca-file": authority.certificate}
    flags = {
        "data-dir": layout.folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "client-cert-auth": "true",
        "peer-client-cert-auth": "true",
        **trust,
        **{f"peer-{name}": value for name, value in trust.items()},
        # What is lost with the machine's power is a cluster for trying things out.
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    }
    ready = Probe(
        url=f"{client}/health",
        authority=str(authority.certificate),
        certificate=str(pair.certificate),
        key=str(pair.key),
    )
    return Component("etcd", _command("etcd", flags), ready=ready, stage=0)


def _api_server(layout: Layout, authority: Authority, serving: Pair, admin: Pair) -> Component:
    store = authority.issue("apiserver-etcd", common_name="kube-apiserver")
    signing = authority.signing_key("service-accounts")
    has_pods = layout.address != "127.0.0.1"
    flags: dict[str, object] = {
        "etcd-servers": f"https://127.0.0.1:{layout.ports[0]}",
        "etcd-cafile": authority.certificate,
        "etcd-certfile": store.certificate,
        "etcd-keyfile": store.key,
        "bind-address": "0.0.0.0" if has_pods else "127.0.0.1",  # noqa: S104  # pods reach it by the node's address
        "secure-port": layout.ports[2],
        "tls-cert-file": serving.certificate,
        "tls-private-key-file": serving.key,
        "client-ca-file": authority.certificate,
        "kubelet-client-certificate": admin.certificate,
        "kubelet-client-key": admin.key,
        "kubelet-preferred-address-types": "InternalIP",
        "service-cluster-ip-range": SERVICE_RANGE,
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": signing,
        "service-account-signing-key-file": signing,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        # There is no proxy for services here: webhooks are called at the addresses behind them.
        "enable-aggregator-routing": "true",
        "profiling": "false",
        "admission-control-config-file": _webhook_credentials(layout),
    }
    flags |= {"advertise-address": layout.address} if has_pods else {"endpoint-reconciler-type": "none"}
    ready = Probe(
        url=f"https://127.0.0.1:{layout.ports[2]}/readyz",
        authority=str(authority.certificate),
        certificate=str(admin.certificate),
        key=str(admin.key),
    )
    # Watches from a node that was switched off would keep it for a minute.
    return Component("kube-apiserver", _command("kube-apiserver", flags), ready=ready, stage=1, stop_seconds=3)


def _webhook_credentials(layout: Layout) -> Path:
    """Has the API server show a certificate to webhooks, of an authority that signs nothing else."""
    authority = Authority(layout.folder / WEBHOOK_AUTHORITY, "gpuslice-webhook-clients")
    pair = authority.issue("apiserver", common_name="kube-apiserver")
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    kubeconfig = layout.folder / "webhooks.kubeconfig"
    users = [{"name": name, "user": user} for name in layout.webhooks]
    _write_document(kubeconfig, {"apiVersion": "v1", "kind": "Config", "users": users})
    version = "apiserver.config.k8s.io/v1"
    for_webhooks = {"apiVersion": version, "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": str(kubeconfig)}
    plugins = [
        {"name": f"{kind}AdmissionWebhook", "configuration": for_webhooks} for kind in ("Mutating", "Validating")
    ]
    path = layout.folder / "admission.json"
    _write_document(path, {"apiVersion": version, "kind": "AdmissionConfiguration", "plugins": plugins})
    return path


def _controller_manager(layout: Layout, authority: Authority) -> Component:
    name = "kube-controller-manager"
    flags = {
        **_client_flags(layout, name),
        "secure-port": layout.ports[3],
        "use-service-account-credentials": "true",
        "service-account-private-key-file": authority.signing_key("service-accounts"),
        "root-ca-file": authority.certificate,
    }
    return Component(name, _command(name, flags), ready=_probe(layout.ports[3], authority, layout, name), stage=2)


def _scheduler(layout: Layout, authority: Authority) -> Component:
    name = "kube-scheduler"
    flags = {**_client_flags(layout, name), "secure-port": layout.ports[4]}
    return Component(name, _command(name, flags), ready=_probe(layout.ports[4], authority, layout, name), stage=2)


def _client_flags(layout: Layout, name: str) -> dict[str, object]:
    kubeconfig = layout.folder / f"{name}.kubeconfig"
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": "127.0.0.1",
        "tls-cert-file": layout.folder / "pki" / f"{name}.crt",
        "tls-private-key-file": layout.folder / "pki" / f"{name}.key",
        # There is one of each, and a killed one must be back at once.
        "leader-elect": "false",
    }


def _probe(port: int, authority: Authority, layout: Layout, name: str) -> Probe:
    pki = layout.folder / "pki"
    return Probe(
        url=f"https://127.0.0.1:{port}/healthz",
        authority=str(authority.certificate),
        certificate=str(pki / f"{name}.crt"),
        key=str(pki / f"{name}.key"),
    )


def _command(name: str, flags: dict[str, object] | dict[str, Path | str]) -> tuple[str, ...]:
    return (str(program(name)), *(f"--{flag}={value}" for flag, value in flags.items()))
