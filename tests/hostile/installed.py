"""gpuslice beside a control plane of a test's own: both programs as they are run, with the rights that they are
installed with.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuslice.installing import parts
from gpuslice.installing.options import Options
from gpuslice_cluster.clusters import free_ports
from tests.cluster.webhooks import listed
from tests.node.support import read_line

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice_cluster.clusters import Cluster

HOME = "gpuslice-system"


@dataclass
class Installed:
    """gpuslice beside a control plane, with its two programs as processes."""

    cluster: Cluster
    command: Path
    folder: Path
    ports: tuple[int, ...] = field(default_factory=lambda: free_ports(2))
    webhook: subprocess.Popen[str] | None = None
    controller: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.ports[0]}"

    def start_webhook(self) -> None:
        if self.webhook is None:
            self.webhook = self._start(
                *("webhook", "--host=127.0.0.1", f"--port={self.ports[0]}", "--metrics-port=0", "--drain=0s")
            )

    def start_controller(self) -> None:
        if self.controller is None:
            self.controller = self._start("controller", f"--port={self.ports[1]}", f"--webhook-url={self.url}")

    def kill_webhook(self) -> None:
        kill(self.webhook)
        self.webhook = None

    def kill_controller(self) -> None:
        kill(self.controller)
        self.controller = None

    def get(self, path: str) -> str:
        """Of the controller."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1]}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def install(self) -> None:
        """All that `gpuslice manifests` prints but the pods, which have no node here."""
        options = Options(url=self.url)
        objects = parts.objects(options, ["namespace", "crds", "webhook", "controller"])
        objects = [each for each in objects if each["kind"] != "Deployment"]
        self.cluster.kubectl("apply", "-f", "-", input=listed(objects))
        kinds = [f"crd/{each['metadata']['name']}" for each in objects if each["kind"] == "CustomResourceDefinition"]
        self.cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *kinds)

    def _credentials(self, program: str) -> Path:
        """Of the service account that the program is installed with, and no other's."""
        written = self.folder / f"{program}.kubeconfig"
        if not written.exists():
            token = self.cluster.kubectl("create", "token", f"gpuslice-{program}", "--namespace", HOME).strip()
            view = json.loads(self.cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
            view["users"] = [{"name": view["users"][0]["name"], "user": {"token": token}}]
            written.write_text(json.dumps(view))
        return written

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        credentials = self._credentials(arguments[0])
        common = (f"--kubeconfig={credentials}", f"--namespace={HOME}", "--address=127.0.0.1")
        with (self.folder / f"{arguments[0]}.log").open("a") as log:
            process = subprocess.Popen(
                [self.command, *arguments, *common, "--log=json"], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert read_line(process)
        return process


def kill(process: subprocess.Popen[str] | None) -> None:
    if process is not None:
        process.kill()
        process.communicate()
