"""A webhook outside of the cluster, with a configuration of its own: by the commands that the documents show, on a real
API server that is the test's alone, so that all names are those that the commands print.
"""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice_cluster import control_plane
from gpuslice_cluster.binaries import program
from gpuslice_cluster.clusters import Cluster, ClusterError, free_ports, new_layout
from tests.cluster.served import end
from tests.cluster.sharing import run_process
from tests.node.support import read_line
from tests.unit.admission.making import container, pod
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

Object = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "deploy" / "configuration.yaml"
DOCUMENT = ROOT / "docs" / "install.md"
SLOTS = "example.com/gpu-slot"
MISSING = "webhook configurations are missing"

#: As deploy/configuration.yaml has it, and as it is without.
CONFIGURED = pod(
    container(limits={"nvidia.com/gpu": "1"}),
    annotations={"example.com/share-gpu": "true", "example.com/workload": "notebook"},
)
USUAL = pod(
    container(limits={"nvidia.com/gpu": "1"}),
    annotations={"castops.io/optimize": "true", "castops.io/workload-type": "training"},
)


CONFIGURED_BADLY = {"example.com/share-gpu": "true", "example.com/gpu-slots": "two"}
CONFIGURED_OTHERWISE = {"example.com/share-gpu": "true", "example.com/workload": "dev"}
SLOTS_FOR_ALL = {
    "apiVersion": "gpuslice.io/v1alpha1",
    "kind": "SlicePolicy",
    "metadata": {"name": "slots"},
    "spec": {"rules": [{"name": "all", "backend": "extended"}]},
}
_FIRST = ("mutating", "validating")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("outside")
    made = Cluster(folder)
    made.start(control_plane.plan(new_layout(folder))[:2], owner=run_process())
    made.kubectl("create", "namespace", "team")
    made.kubectl("create", "namespace", "gpuslice-system")
    made.kubectl("create", "serviceaccount", "default", "--namespace", "team")
    yield made
    made.stop()


@contextmanager
def _applied(cluster: Cluster, gpuslice: Path, *options: str) -> Iterator[None]:
    """What `gpuslice manifests` prints, as it is."""
    printed = subprocess.run([gpuslice, "manifests", *options], capture_output=True, text=True, check=True).stdout
    cluster.kubectl("apply", "-f", "-", input=printed)
    try:
        yield
    finally:
        # Nothing here ends a namespace, and no test needs it to.
        acting = ("webhookconfigurations", "admissionpolicies", "admissionpolicybindings")
        cluster.kubectl("delete", ",".join(f"{first}{kind}" for kind in acting for first in _FIRST), "--all")


@contextmanager
def _webhook(gpuslice: Path, folder: Path, kubeconfig: Path, port: int, *options: str) -> Iterator[Path]:
    """It runs meanwhile. Its log."""
    log = folder / "log"
    with log.open("w") as written:
        process = subprocess.Popen(
            [
                *(gpuslice, "webhook", "--kubeconfig", kubeconfig, "--namespace", "gpuslice-system"),
                *("--host", "127.0.0.1", "--address", "127.0.0.1", "--port", str(port), "--metrics-port", "0"),
                *("--drain", "0s", *options),
            ],
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
        )
    try:
        assert "is ready" in read_line(process), log.read_text()
        yield log
    finally:
        end(process)


def _kubeconfig(cluster: Cluster, folder: Path) -> Path:
    """Of the account that was printed alone, made as the document shows it."""
    document = DOCUMENT.read_text()
    making = re.search(r"^user=.*?(?=^gpuslice webhook)", document, re.MULTILINE | re.DOTALL)
    assert making is not None
    environment = {"KUBECONFIG": str(cluster.kubeconfig), "PATH": f"{program('kubectl').parent}:/usr/bin:/bin"}
    subprocess.run(["bash", "-ec", making[0]], cwd=folder, env=environment, check=True, capture_output=True)
    written = folder / "webhook.kubeconfig"
    assert "client-key" not in written.read_text()
    return written


def _created(cluster: Cluster, asked: Object) -> tuple[Object, str]:
    """What the API server would give the pod's container, and what it says."""
    done = subprocess.run(
        [
            program("kubectl"),
            f"--kubeconfig={cluster.kubeconfig}",
            "create",
            "--dry-run=server",
            "-o",
            "json",
            "-f",
            "-",
        ],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    limits = (
        json.loads(done.stdout)["spec"]["containers"][0]["resources"].get("limits", {}) if done.returncode == 0 else {}
    )
    return limits, done.stderr


def _applies(cluster: Cluster, written: Object) -> bool:
    try:
        cluster.kubectl("apply", "-f", "-", input=json.dumps(written))
    except ClusterError:
        return False
    return True


def _logged(log: Path, event: str) -> list[Object]:
    entries = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [entry for entry in entries if event in entry["event"]]


def _node(name: str, **resources: str) -> Object:
    labels = {"nvidia.com/gpu.present": "true"}
    status = {"capacity": resources, "allocatable": resources}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def test_what_the_command_prints_is_enough_and_pods_are_read_as_the_configuration_says(
    cluster: Cluster, gpuslice_command: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    configured = ("--config", str(CONFIGURATION))
    with _applied(cluster, gpuslice_command, "--url", f"https://127.0.0.1:{port}", *configured):
        kubeconfig = _kubeconfig(cluster, tmp_path)
        with _webhook(gpuslice_command, tmp_path, kubeconfig, port, *configured) as log:
            eventually(lambda: _created(cluster, CONFIGURED)[0] == {SLOTS: "1"}, "a slot", seen=log.read_text)
            assert _created(cluster, USUAL)[0] == {"nvidia.com/gpu": "1"}, "that name has no meaning here"
            assert not _logged(log, MISSING)
            assert "forbidden" not in log.read_text()

            cluster.kubectl("apply", "-f", "-", input=json.dumps(SLOTS_FOR_ALL))
            third = pod(container(limits={"nvidia.com/gpumem-percentage": "30"}))
            eventually(lambda: _created(cluster, third)[0] == {SLOTS: "2"}, "two of four slots", seen=log.read_text)
        # No webhook answers any more, and the API server itself knows a malformed request by the names of the file.
        bad = pod(*CONFIGURED["spec"]["containers"], annotations=CONFIGURED_BADLY)
        eventually(lambda: "failed calling webhook" in _created(cluster, bad)[1], "a refusal")
        assert _created(cluster, CONFIGURED)[0] == {"nvidia.com/gpu": "1"}


def test_a_pod_is_told_when_no_node_offers_what_it_is_given_and_never_refused(
    cluster: Cluster, gpuslice_command: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    told = "no node offers nvidia.com/gpu-shared at the moment"
    with (
        _applied(cluster, gpuslice_command, "--url", f"https://127.0.0.1:{port}"),
        _webhook(gpuslice_command, tmp_path, _kubeconfig(cluster, tmp_path), port) as log,
    ):
        # A policy is refused as long as no webhook with a certificate is there to look at it.
        eventually(lambda: _applies(cluster, SLOTS_FOR_ALL), "a policy", seen=log.read_text)
        slots = {"nvidia.com/gpu-shared": "4"}
        eventually(lambda: _created(cluster, USUAL)[0] == slots, "slots", seen=log.read_text)
        assert told not in _created(cluster, USUAL)[1], "nodes with GPUs may be yet to come"

        _create_node(cluster, _node("claims", **{"nvidia.com/gpu": "8", "nvidia.com/gpu-shared": "0"}))
        eventually(lambda: told in _created(cluster, USUAL)[1], "a warning", seen=log.read_text)
        assert _created(cluster, USUAL)[0] == slots

        _create_node(cluster, _node("slots", **{"nvidia.com/gpu-shared": "40"}))
        eventually(lambda: told not in _created(cluster, USUAL)[1], "no warning", seen=log.read_text)
        cluster.kubectl("delete", "node", "claims", "slots")


def test_a_webhook_without_calls_says_so_once_and_is_called_from_when_it_is_configured(
    cluster: Cluster, gpuslice_command: Path, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    with _applied(cluster, gpuslice_command, "--url", f"https://127.0.0.1:{port}"):
        kubeconfig = _kubeconfig(cluster, tmp_path)
    with _webhook(gpuslice_command, tmp_path, kubeconfig, port) as log:
        eventually(lambda: _logged(log, MISSING), "a warning", seen=log.read_text)
        cluster.kubectl("annotate", "secret", "gpuslice-webhook-tls", "--namespace=gpuslice-system", "nudge=1")
        with _applied(cluster, gpuslice_command, "--url", f"https://127.0.0.1:{port}"):
            eventually(lambda: "nvidia.com/gpu" not in _created(cluster, USUAL)[0], "a slice", seen=log.read_text)
            (entry,) = _logged(log, MISSING)
    assert entry["level"] == "warning"
    assert entry["missing"] == [f"{kind}webhookconfigurations/gpuslice" for kind in _FIRST]
    assert "gpuslice manifests" in entry["event"]


def test_the_policy_without_a_server_reads_pods_as_the_configuration_says(
    cluster: Cluster, gpuslice_command: Path
) -> None:
    with _applied(cluster, gpuslice_command, "--admission-policy", "--config", str(CONFIGURATION)):
        eventually(lambda: _created(cluster, CONFIGURED)[0] == {SLOTS: "1"}, "a slot")
        assert _created(cluster, USUAL)[0] == {"nvidia.com/gpu": "1"}
        other = pod(*CONFIGURED["spec"]["containers"], annotations=CONFIGURED_OTHERWISE)
        assert "the known ones are inference, notebook, training" in _created(cluster, other)[1]


def test_the_api_server_accepts_an_installation_with_a_configuration(cluster: Cluster, gpuslice_command: Path) -> None:
    options = ("--config", str(CONFIGURATION), "--only", "webhook", "--only", "agent")
    printed = subprocess.run([gpuslice_command, "manifests", *options], capture_output=True, text=True, check=True)

    said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=printed.stdout)

    assert "configmap/gpuslice-configuration created" in said
    assert "daemonset.apps/gpuslice-agent created" in said


def _create_node(cluster: Cluster, node: Object) -> None:
    cluster.kubectl("create", "-f", "-", input=json.dumps(node))
