"""The node is a real one: containers run in it, with a network, services and devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice_cluster.clusters import ClusterError
from tests.e2e.pods import CUDA_TEST, GPUSLICE, pod, processes_of, read, run, start

if TYPE_CHECKING:
    from gpuslice_cluster.clusters import Cluster

ASK_API_SERVER = """\
import os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
request = urllib.request.Request(f"https://{os.environ['KUBERNETES_SERVICE_HOST']}/api")
request.add_header("Authorization", "Bearer " + open(f"{folder}/token").read())
print(urllib.request.urlopen(request, context=ssl.create_default_context(cafile=f"{folder}/ca.crt")).status)
"""


def test_a_container_runs_and_its_output_can_be_read(cluster: Cluster, namespace: str) -> None:
    start(cluster, namespace, pod("greeter", "sh", "-c", "echo hello from $HOSTNAME; exec sleep 3600"))
    assert cluster.kubectl("logs", "--namespace", namespace, "greeter") == "hello from greeter\n"


def test_a_command_can_be_run_in_a_container(cluster: Cluster, namespace: str) -> None:
    start(cluster, namespace, pod("host", "sleep", "3600"))
    assert run(cluster, namespace, "host", "sh", "-c", "echo $((6 * 7)); id -u") == "42\n0\n"


def test_the_processes_of_a_deleted_pod_are_gone(cluster: Cluster, namespace: str) -> None:
    start(cluster, namespace, pod("short", "sleep", "3600"))
    uid = read(cluster, namespace, "pod/short", ".metadata.uid")
    assert processes_of(uid)
    cluster.kubectl("delete", "--namespace", namespace, "pod/short", "--timeout=60s")
    assert not processes_of(uid)


def test_a_service_is_reached_by_pods_and_by_the_api_server(cluster: Cluster, namespace: str) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "pages"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    server = pod("server", "httpd", "-f", "-p", "8080", "-h", "/etc")
    start(cluster, namespace, service, server, pod("client", "sleep", "3600"))
    address = read(cluster, namespace, "service/pages", ".spec.clusterIP")
    # The way to a new pod is laid a moment after the pod is ready.
    get = f"until wget -qO- http://{address}/hostname 2>/dev/null; do usleep 100000; done"
    assert run(cluster, namespace, "client", "timeout", "60", "sh", "-c", get) == "server\n"
    proxied = f"/api/v1/namespaces/{namespace}/services/pages:80/proxy/hostname"
    assert cluster.kubectl("get", "--raw", proxied) == "server\n"


def test_gpuslice_runs_in_a_pod_and_reaches_the_api_server_as_its_service_account(
    cluster: Cluster, namespace: str
) -> None:
    start(cluster, namespace, pod("own", "sleep", "3600", image=GPUSLICE))
    assert run(cluster, namespace, "own", "gpuslice", "--version").startswith("gpuslice ")
    assert run(cluster, namespace, "own", "python3", "-c", ASK_API_SERVER) == "200\n"


def test_a_container_without_a_gpu_has_no_driver(cluster: Cluster, namespace: str) -> None:
    start(cluster, namespace, pod("plain", "sleep", "3600", image=CUDA_TEST))
    with pytest.raises(ClusterError, match="there is no CUDA driver here"):
        run(cluster, namespace, "plain", "cuda-test", "memory")


def test_devices_of_a_plugin_are_in_the_container_as_cdi_says(cluster: Cluster, namespace: str) -> None:
    script = (Path(__file__).parent / "device_plugin.py").read_text()
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"plugin.py": script}}
    folders = {"kubelet": "/var/lib/kubelet/device-plugins", "cdi": "/var/run/cdi"}
    mounts = [{"name": name, "mountPath": path} for name, path in folders.items()]
    plugin = pod(
        "plugin",
        "python3",
        "/code/plugin.py",
        image=GPUSLICE,
        container={
            "securityContext": {"privileged": True, "runAsUser": 0},
            "volumeMounts": [*mounts, {"name": "code", "mountPath": "/code"}],
        },
    )
    plugin["spec"]["volumes"] = [
        *({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}} for name, path in folders.items()),
        {"name": "code", "configMap": {"name": "code"}},
    ]
    start(cluster, namespace, code, plugin)
    wanted = {"resources": {"limits": {"example.com/thing": "1"}}}
    start(cluster, namespace, pod("user", "sleep", "3600", container=wanted))
    seen = run(cluster, namespace, "user", "sh", "-c", "echo $THING; cat /thing")
    assert seen.split() == ["one", Path("/etc/hostname").read_text().strip()]
