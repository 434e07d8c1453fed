"""Measures what admission adds to the creation of a pod through a real API server, at the median.

The same pod is created (dry run) in namespaces that differ in who rewrites it, and they take turns, pod by pod:

- no webhook;
- the Go peer, and `gpuslice webhook` configured as the peer is: what differs is the server;
- `gpuslice webhook` as it is installed, with its second webhook that refuses malformed requests, and the peer with the
  same conditions. They keep pods that ask for no GPU from being sent at all, and cost the API server a quarter of a
  millisecond each time that it looks: once before the pod is rewritten, and once more after;
- the MutatingAdmissionPolicy that does CastSlice's rewrite in the API server, with the policy that refuses.

`python -m bench.apiserver` shows a table and writes `bench/results/apiserver.json`.
"""

from __future__ import annotations

import base64
import copy
import http.client
import json
import os
import ssl
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import servers
from bench.figures import Figure, publish
from bench.reviews import CASTSLICE, review_body
from gpuslice.admission.registration import mutating_policy, webhook_configurations
from gpuslice_cluster import control_plane
from gpuslice_cluster.clusters import Cluster, new_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.servers import Certificates, Server
    from gpuslice_cluster.control_plane import Layout

_BARE: Final = "bare"
_PEER: Final = "peer"
_OURS: Final = "ours"
_INSTALLED: Final = "installed"
_CONDITIONED_PEER: Final = "conditioned-peer"
_POLICY: Final = "policy"
_VARIANTS: Final = (_BARE, _PEER, _OURS, _CONDITIONED_PEER, _INSTALLED, _POLICY)
_ROUNDS: Final = 500
_WARM_UP: Final = 50
_SECONDS_TO_TAKE_EFFECT: Final = 30.0

Object = dict[str, Any]


class RefusedError(Exception):
    """Raised when the API server does not take the pod."""


class Creator:
    """Creates pods over one keep-alive connection, as the administrator, without a trace."""

    def __init__(self, layout: Layout) -> None:
        folder = layout.folder / "pki"
        trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        trust.load_cert_chain(folder / "admin.crt", folder / "admin.key")
        self._connection = http.client.HTTPSConnection("127.0.0.1", layout.ports[2], context=trust)
        pod: Object = json.loads(review_body({"nvidia.com/gpu": "1"}, CASTSLICE))["request"]["object"]
        for name in ("name", "namespace", "managedFields"):
            del pod["metadata"][name]
        pod["spec"]["containers"][0]["volumeMounts"] = []  # the API server adds the token's
        self._pod = json.dumps(pod)

    def create(self, namespace: str) -> tuple[float, Object]:
        """The seconds that it took, and the pod."""
        began = time.perf_counter()
        self._connection.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods?dryRun=All",
            self._pod,
            {"Content-Type": "application/json"},
        )
        with self._connection.getresponse() as response:
            answer = response.read()
            taken = time.perf_counter() - began
            if response.status != http.client.CREATED:
                raise RefusedError(f"no pod in {namespace}: {answer.decode()[:500]}")
        return taken, json.loads(answer)

    def close(self) -> None:
        self._connection.close()


def measure() -> list[Figure]:
    programs = servers.build_peer()
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench.") as work, ExitStack() as stack:
        print("==> Starting a control plane", flush=True)
        layout = new_layout(Path(work))
        cluster = Cluster(layout.folder)
        cluster.start(control_plane.plan(layout), owner=os.getpid())
        stack.callback(cluster.stop)
        certificates = servers.Certificates.make(layout.folder)
        peer = stack.enter_context(servers.peer(certificates, programs))
        ours = stack.enter_context(servers.ours(certificates))
        _set_up(cluster, _documents(certificates, peer, ours))
        creator = Creator(layout)
        stack.callback(creator.close)
        _wait_until_in_force(creator)
        seconds: dict[str, list[float]] = {variant: [] for variant in _VARIANTS}
        for _ in range(_WARM_UP + _ROUNDS):
            for variant in _VARIANTS:
                seconds[variant].append(creator.create(variant)[0])
    return _figures({variant: taken[_WARM_UP:] for variant, taken in seconds.items()})


def _documents(certificates: Certificates, peer: Server, ours: Server) -> list[Object]:
    """What rewrites pods, each confined to the namespace of its name."""
    bundle = base64.b64encode(certificates.authority.read_bytes()).decode()
    address = webhook_configurations.Address(url=f"https://127.0.0.1:{ours.port}")
    installed = webhook_configurations.Webhooks(target=address)
    documents = [
        (_PEER, _usual_configuration(_PEER, peer)),
        (_OURS, _usual_configuration(_OURS, ours)),
        (_CONDITIONED_PEER, _conditioned(_usual_configuration(_CONDITIONED_PEER, peer))),
        (_INSTALLED, webhook_configurations.mutating(installed)),
        (_INSTALLED, webhook_configurations.validating(installed)),
    ]
    for namespace, document in documents:
        for webhook in document["webhooks"]:
            webhook["clientConfig"]["caBundle"] = bundle
            webhook["namespaceSelector"] = _only(namespace)
    policies = copy.deepcopy(mutating_policy.documents())
    for policy in policies:
        if "matchConstraints" in policy["spec"]:
            policy["spec"]["matchConstraints"]["namespaceSelector"] = _only(_POLICY)
    return [*(document for _, document in documents), *policies]


def _usual_configuration(name: str, server: Server) -> Object:
    """Every new pod is sent."""
    webhook = {
        "name": f"{name}.example.com",
        "clientConfig": {"url": f"https://127.0.0.1:{server.port}{server.path}"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "rules": [webhook_configurations.PODS],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


def _conditioned(configuration: Object) -> Object:
    (ours,) = webhook_configurations.mutating(
        webhook_configurations.Webhooks(target=webhook_configurations.Address(url=""))
    )["webhooks"]
    (webhook,) = configuration["webhooks"]
    webhook["matchConditions"] = ours["matchConditions"]
    return configuration


def _only(namespace: str) -> Object:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


def _set_up(cluster: Cluster, documents: Sequence[Object]) -> None:
    for variant in _VARIANTS:
        cluster.kubectl("create", "namespace", variant)
        cluster.kubectl("wait", "-n", variant, "--for=create", "serviceaccount/default", "--timeout=30s")
    listed = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
    cluster.kubectl("create", "-f", "-", input=json.dumps(listed))


def _wait_until_in_force(creator: Creator) -> None:
    """The API server reads configurations a moment after they are stored, and not all at once."""
    deadline = time.monotonic() + _SECONDS_TO_TAKE_EFFECT
    for variant in _VARIANTS:
        while not _is_in_force(creator, variant):
            if time.monotonic() > deadline:
                raise SystemExit(f"error: pods of the namespace {variant} are not rewritten as they should be")
            time.sleep(0.1)


def _is_in_force(creator: Creator, variant: str) -> bool:
    wanted = "nvidia.com/gpu" if variant == _BARE else "nvidia.com/gpu-shared"
    try:
        pod = creator.create(variant)[1]
    except RefusedError:
        return False
    return wanted in pod["spec"]["containers"][0]["resources"]["limits"]


def _figures(seconds: dict[str, list[float]]) -> list[Figure]:
    median = {variant: 1e3 * statistics.median(taken) for variant, taken in seconds.items()}
    added = {variant: value - median[_BARE] for variant, value in median.items()}

    def figure(name: str, variant: str, baseline: str, at_most: float | None = None) -> Figure:
        return Figure(name=name, unit="ms", value=added[variant], baseline=added[baseline], at_most=at_most)

    return [
        Figure(name="a pod with nothing added", unit="ms", value=median[_BARE]),
        figure("webhook, to the peer", _OURS, _PEER, 0.7),
        figure("webhook, to the policy", _OURS, _POLICY, 1),
        figure("webhook as installed, to the peer with its conditions", _INSTALLED, _CONDITIONED_PEER, 0.7),
        figure("webhook as installed, to the peer without them", _INSTALLED, _PEER),
        figure("webhook as installed, to the policy", _INSTALLED, _POLICY, 1),
    ]


def main() -> int:
    publish("apiserver", "Added to the creation of a pod through a real API server, median", "baseline", measure())
    return 0


if __name__ == "__main__":
    sys.exit(main())
