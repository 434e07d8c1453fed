"""Who may connect to gpuslice's pods, where the cluster's network enforces it.

No policy can name an API server: it comes from an address of a control plane's machine, or of a tunnel's pod. So
reviews are taken from everywhere, unless the operator names the networks of pods, from which no API server may come.
Metrics, which name pods of all namespaces, are for namespaces with a label. A node's own probes always pass.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

from gpuslice.installing.objects import Object, metadata, selector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.installing.options import Options

#: On namespaces that may read metrics. Others use the same, so that one label serves for all.
METRICS_LABEL: Final = {"metrics": "enabled"}
_ALL: Final = {4: "0.0.0.0/0", 6: "::/0"}


def policy(name: str, options: Options, *, metrics: int, reviews: int | None = None) -> Object:
    """For the pods of a part, with the numbers of their ports."""
    readers = {"namespaceSelector": {"matchLabels": METRICS_LABEL}}
    ingress: list[Object] = [{"from": [readers], "ports": [_port(metrics)]}]
    if reviews is not None:
        sources = _outside(options.pod_networks)
        ingress.append({**({"from": sources} if sources else {}), "ports": [_port(reviews)]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(name, options),
        "spec": {"podSelector": {"matchLabels": selector(name)}, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _outside(pod_networks: Sequence[str]) -> list[Object]:
    """All addresses but the pods'; nothing if these are not known."""
    if not pod_networks:
        return []
    found: list[Object] = []
    for version, everything in _ALL.items():
        within = [text for text in pod_networks if ip_network(text).version == version]
        found.append({"ipBlock": {"cidr": everything, **({"except": within} if within else {})}})
    return found


def _port(number: int) -> Object:
    return {"protocol": "TCP", "port": number}
