"""The kubelet of a node, and kube-proxy, which makes services reachable inside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice_cluster.binaries import installed, program
from gpuslice_cluster.components import Component, Probe
from gpuslice_cluster.containerd import SOCKET
from gpuslice_cluster.control_plane import write_kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice_cluster.network import Network
    from gpuslice_cluster.pki import Authority

HEALTH_PORT: Final = 10248
_PROXY_HEALTH_PORT: Final = 10256
_MOST_PODS: Final = 240  # each has an address of 256


@dataclass(frozen=True)
class Identity:
    """Who a node is, and where it finds the API server. What is written for it goes into the folder."""

    folder: Path
    name: str
    network: Network
    authority: Authority
    server: str

    def kubeconfig(self, component: str, *, common_name: str, groups: tuple[str, ...] = ()) -> Path:
        """For one of the node's components."""
        path = self.folder / f"{component}.kubeconfig"
        pair = self.authority.issue(component, common_name=common_name, groups=groups)
        write_kubeconfig(path, self.server, self.authority, pair)
        return path


def kubelet(node: Identity, *, stage: int) -> Component:
    """Writes its configuration, and returns how to run it."""
    user = f"system:node:{node.name}"
    serving = node.authority.issue("kubelet-serving", common_name=user, hosts=(node.name, node.network.node))
    kubeconfig = node.kubeconfig("kubelet", common_name=user, groups=("system:nodes",))
    configuration = node.folder / "kubelet.json"
    _write(
        configuration,
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": str(node.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            # Control groups: below a group of the cluster's own, of whichever version the machine has.
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.network.label}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "localStorageCapacityIsolation": False,
            "maxPods": _MOST_PODS,
            "address": node.network.node,
            "healthzBindAddress": node.network.node,
            "healthzPort": HEALTH_PORT,
            # A machine that is short of disk or memory must not lose its pods: a user experiments with them.
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            # Ready soon, and seen to be.
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 20,
            "syncFrequency": "10s",
            "serializeImagePulls": False,
            # There is no name service. A pod that asks is refused at once, and does not wait for one it cannot reach.
            "clusterDNS": ["127.0.0.1"],
            "resolvConf": "",
        },
    )
    flags = (
        f"--config={configuration}",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.network.node}",
        "--node-labels=gpuslice.io/gpu-node=true",
    )
    ready = Probe(url=f"http://{node.network.node}:{HEALTH_PORT}/healthz")
    return Component("kubelet", (str(program("kubelet")), *flags), ready=ready, stage=stage)


def kube_proxy(node: Identity, *, stage: int) -> Component:
    """Writes its configuration, and returns how to run it."""
    installed("nft")
    kubeconfig = node.kubeconfig("kube-proxy", common_name="system:kube-proxy")
    configuration = node.folder / "kube-proxy.json"
    _write(
        configuration,
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "hostnameOverride": node.name,
            "clusterCIDR": str(node.network.pods),
            "detectLocalMode": "ClusterCIDR",
            "healthzBindAddress": f"127.0.0.1:{_PROXY_HEALTH_PORT}",
            "metricsBindAddress": "127.0.0.1:10249",
            "oomScoreAdj": 0,
            # These belong to the machine as a whole; zero leaves them as they are.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        },
    )
    ready = Probe(url=f"http://127.0.0.1:{_PROXY_HEALTH_PORT}/livez")
    return Component("kube-proxy", (str(program("kube-proxy")), f"--config={configuration}"), ready=ready, stage=stage)


def _write(path: Path, document: dict[str, object]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2))
