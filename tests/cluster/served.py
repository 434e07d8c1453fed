"""The webhook's own process beside the real API server, called for the pods of one namespace."""

from __future__ import annotations

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuslice.admission.registration import webhook_configurations
from gpuslice_cluster.clusters import free_ports
from gpuslice_cluster.pki import Authority
from tests.cluster.kube.support import ROOT, install_policies
from tests.cluster.sharing import new_namespace
from tests.cluster.webhooks import webhook_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice_cluster.clusters import Cluster

GPUSLICE = str(Path(sys.executable).with_name("gpuslice"))


@dataclass
class Served:
    """Webhook processes on one port, and the API server's configuration that names them."""

    cluster: Cluster
    folder: Path
    namespace: str
    ports: tuple[int, ...] = field(default_factory=lambda: free_ports(2))
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.ports[0]}"

    def start(self, **options: str) -> subprocess.Popen[str]:
        """Starts one and returns when it is ready. Several can listen side by side."""
        pair = self._authority.issue("webhook", common_name="webhook", hosts=("127.0.0.1",))
        flags = {
            "kubeconfig": str(self.cluster.kubeconfig),
            "address": "127.0.0.1",
            "port": str(self.ports[0]),
            "metrics-port": str(self.ports[1]),
            "certificate": str(pair.certificate),
            "key": str(pair.key),
            "drain": "500ms",
            **options,
        }
        log = (self.folder / f"webhook-{len(self.processes)}.log").open("w")
        with log:
            process = subprocess.Popen(
                [GPUSLICE, "webhook", *(f"--{name}={value}" for name, value in flags.items())],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.processes.append(process)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "is ready" in said, Path(log.name).read_text()
        return process

    def start_template_maker(self) -> None:
        """Claim templates of this namespace's pods are made from now on."""
        with (self.folder / "template-maker.log").open("w") as log:
            command = [sys.executable, "-m", "tests.cluster.template_maker", str(self.cluster.kubeconfig)]
            command.append(self.namespace)
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, text=True, cwd=ROOT)
        self.processes.append(process)

    def configure(self, *, failure_policy: str | None = None) -> None:
        """Both configurations, for this namespace alone: other tests share the API server."""
        webhooks = webhook_configurations.Webhooks(target=webhook_configurations.Address(url=self.url))
        bundle = base64.b64encode(self._authority.certificate.read_bytes()).decode()
        for document in (webhook_configurations.mutating(webhooks), webhook_configurations.validating(webhooks)):
            document["metadata"]["name"] = self.namespace
            document["webhooks"] = [hook for hook in document["webhooks"] if hook["name"].startswith("pods.")]
            for hook in document["webhooks"]:
                hook["name"] = webhook_name(self.namespace, hook["name"])
                hook["clientConfig"]["caBundle"] = bundle
                hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
                if failure_policy:
                    hook["failurePolicy"] = failure_policy
            self.cluster.kubectl("apply", "-f", "-", input=json.dumps(document))

    def metrics(self) -> str:
        import urllib.request

        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1]}/metrics") as answer:
            text: str = answer.read().decode()
            return text

    def client_context(self) -> ssl.SSLContext:
        """Of a client that trusts the webhook, and has no certificate itself."""
        return ssl.create_default_context(cafile=str(self._authority.certificate))

    def stop(self) -> None:
        kinds = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
        for kind in kinds:
            self.cluster.kubectl("delete", kind, self.namespace, "--ignore-not-found")
        for process in self.processes:
            end(process)

    @property
    def _authority(self) -> Authority:
        return Authority(self.folder / "pki")


@contextmanager
def serving(cluster: Cluster, folder: Path) -> Iterator[Served]:
    """A webhook and a namespace of its own. The tests of one file may run in several workers, so no name is fixed."""
    install_policies(cluster)
    with new_namespace(cluster) as namespace:
        served = Served(cluster, folder, namespace)
        try:
            served.start()
            served.configure()
            yield served
        finally:
            served.stop()


def end(process: subprocess.Popen[str]) -> int:
    """As a Deployment ends a pod."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
    code = process.wait(timeout=60)
    if process.stdout is not None:
        process.stdout.close()
    return code


def created(cluster: Cluster, namespace: str, document: dict[str, Any], *options: str) -> dict[str, Any]:
    """What the API server made of it."""
    answer = cluster.kubectl("create", "-n", namespace, "-f", "-", "-o", "json", *options, input=json.dumps(document))
    result: dict[str, Any] = json.loads(answer)
    return result
