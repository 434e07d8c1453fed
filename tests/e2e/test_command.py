"""`gpuslice cluster` on a cluster that is up."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpuslice_cluster import node as nodes

if TYPE_CHECKING:
    from pathlib import Path

    from gpuslice_cluster.clusters import Cluster

EVERYTHING = {
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "node",
    "containerd",
    "kubelet",
    "kube-proxy",
}


class Command:
    """`gpuslice cluster`, as a user of the tests' cluster calls it."""

    def __init__(self, program: Path, state_home: Path, cluster: Cluster) -> None:
        self._program = program
        self._environment = os.environ | {"XDG_STATE_HOME": str(state_home)}
        self.name = cluster.folder.name

    def __call__(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [str(self._program), "cluster", command, "--name", self.name, *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=False, env=self._environment)


@pytest.fixture
def command(gpuslice_command: Path, state_home: Path, cluster: Cluster) -> Command:
    return Command(gpuslice_command, state_home, cluster)


def test_status_shows_every_component_of_control_plane_and_node(command: Command) -> None:
    states = json.loads(command("status", "--output", "json").stdout)
    assert {state["name"] for state in states} == EVERYTHING
    shown = command("status").stdout
    assert all(name in shown for name in EVERYTHING)


def test_kubectl_gets_every_argument_and_gives_its_exit_code(command: Command, namespace: str) -> None:
    assert command("kubectl", "get", "namespace", namespace, "--output=name").stdout == f"namespace/{namespace}\n"
    missing = command("kubectl", "--namespace", namespace, "get", "pod", "nobody")
    assert missing.returncode == 1
    assert '"nobody" not found' in missing.stderr


def test_the_kubeconfig_is_where_it_says(command: Command, cluster: Cluster) -> None:
    assert command("kubeconfig").stdout == f"{cluster.kubeconfig}\n"


def test_a_command_runs_on_the_node_and_sees_what_the_node_sees(command: Command, cluster: Cluster) -> None:
    node = nodes.description(cluster.folder)
    assert node is not None
    assert command("node", "hostname").stdout == f"{node.name}\n"
    assert "kubelet.sock" in command("node", "ls", "/var/lib/kubelet/device-plugins").stdout


def test_logs_are_printed_and_a_wrong_name_is_told_the_right_ones(command: Command) -> None:
    assert "containerd successfully booted" in command("logs", "containerd").stdout
    wrong = command("logs", "kubelets")
    assert wrong.returncode == 1
    assert "kubelet," in wrong.stderr


def test_a_cluster_that_is_up_is_not_brought_up_again(command: Command) -> None:
    again = command("up")
    assert again.returncode == 1
    assert f"cluster '{command.name}' is up" in again.stderr
    assert command("kubectl", "get", "nodes").returncode == 0


def test_an_absent_cluster_is_said_to_be_absent_with_those_there_are(command: Command) -> None:
    present, command.name = command.name, "elsewhere"
    for action in ("status", "down"):
        refused = command(action)
        assert refused.returncode == 1
        assert present in refused.stderr
