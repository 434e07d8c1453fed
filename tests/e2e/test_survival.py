"""What serves a running pod is killed, and the pod does not notice; what comes after works as before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice_cluster.clusters import ClusterError
from tests.e2e import breaking
from tests.e2e.gpus import GIB, filled, gpu_pod, total
from tests.e2e.pods import read, run, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice_cluster.clusters import Cluster

OUT_OF_MEMORY = 2
SYSTEM = "gpuslice-system"


@pytest.fixture
def holding(alone: Cluster, namespace: str) -> Cluster:
    """A pod with a slice of 2 GiB, of which a program holds half."""
    start(alone, namespace, gpu_pod("steady", {"gpuslice.io/memory": "2Gi"}))
    run(alone, namespace, "steady", "sh", "-c", f"cuda-test hold {GIB} > /said 2>&1 &")
    eventually(lambda: "holding" in run(alone, namespace, "steady", "cat", "/said"), "the program holds its memory")
    return alone


def _is_as_before(cluster: Cluster, namespace: str) -> None:
    eventually(lambda: _answers(cluster, namespace), "the pod can be reached again")
    assert read(cluster, namespace, "pod/steady", ".status.containerStatuses[0].restartCount") == "0"
    # The half that is held is still charged, and the other can be had.
    assert filled(cluster, namespace, "steady", GIB // 4) == (GIB, OUT_OF_MEMORY)
    # A new pod gets its slice.
    start(cluster, namespace, gpu_pod("later", {"gpuslice.io/memory": "3Gi"}))
    assert total(cluster, namespace, "later") == 3 * GIB


def _answers(cluster: Cluster, namespace: str) -> bool:
    try:
        return run(cluster, namespace, "steady", "echo", "here") == "here\n"
    except ClusterError:
        return False


def test_a_killed_agent_loses_nothing(holding: Cluster, namespace: str) -> None:
    def agent(path: str) -> str:
        within = ("--namespace", SYSTEM, "-l", "app.kubernetes.io/name=gpuslice-agent")
        return holding.kubectl("get", "pods", *within, f"-o=jsonpath={{.items[0]{path}}}")

    before = int(agent(".status.containerStatuses[0].restartCount"))
    container = agent(".status.containerStatuses[0].containerID").removeprefix("containerd://")
    # Its first process cannot be killed from inside the container; the node can.
    first_process = f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{container}/init.pid"
    breaking.on_node(holding, "sh", "-c", f"kill -KILL $(cat {first_process})")
    eventually(lambda: int(agent(".status.containerStatuses[0].restartCount")) > before, "the agent is started again")
    eventually(lambda: agent(".status.containerStatuses[0].ready") == "true", "the agent is ready")

    _is_as_before(holding, namespace)


@pytest.mark.usefixtures("breakable")
@pytest.mark.parametrize("component", ["kubelet", "containerd", "kube-apiserver"])
def test_a_killed_component_loses_nothing(holding: Cluster, namespace: str, component: str) -> None:
    breaking.kill(holding, component)

    _is_as_before(holding, namespace)


@pytest.fixture
def extended(alone: Cluster) -> Iterator[Cluster]:
    """The node's GPUs as slots of an extended resource."""
    agent = json.loads(alone.kubectl("get", "daemonset", "-n", SYSTEM, "gpuslice-agent", "-o", "json"))
    arguments: list[str] = agent["spec"]["template"]["spec"]["containers"][0]["args"]
    _restart_agent(alone, [*arguments, "--backend=extended"])
    try:
        eventually(lambda: _slots(alone) == "20", "the node has slots")
        yield alone
    finally:
        alone.kubectl("delete", "pods", "-A", "-l", "backend=extended", "--ignore-not-found")
        _restart_agent(alone, [*arguments, "--backend=dra"])
        eventually(lambda: "gpu" in alone.kubectl("get", "resourceslices", "-o", "name"), "GPUs are published again")


def _slots(cluster: Cluster) -> str:
    allocatable = json.loads(cluster.kubectl("get", "nodes", "-o=jsonpath={.items[0].status.allocatable}"))
    return str(allocatable.get("nvidia.com/gpu-shared", ""))


def _restart_agent(cluster: Cluster, arguments: list[str]) -> None:
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": arguments}]
    within = ("-n", SYSTEM, "daemonset/gpuslice-agent")
    cluster.kubectl("patch", *within, "--type=json", f"--patch={json.dumps(patch)}")
    cluster.kubectl("rollout", "status", *within, "--timeout=120s")


def _castslice(backend: str) -> dict[str, Any]:
    annotations = {"castops.io/optimize": "true", "castops.io/workload-type": "inference"}
    made = gpu_pod("castslice", {"nvidia.com/gpu": "1"}, annotations)
    made["metadata"]["labels"]["backend"] = backend
    return made


def test_a_castslice_pod_runs_in_slots_of_an_extended_resource(extended: Cluster, namespace: str) -> None:
    start(extended, namespace, _castslice("extended"))

    # Two of ten slots.
    assert total(extended, namespace, "castslice") == 8 * GIB
    assert filled(extended, namespace, "castslice", GIB) == (8 * GIB, OUT_OF_MEMORY)
    extended.kubectl("delete", "pod", "-n", namespace, "castslice")
    start(extended, namespace, _castslice("extended"))
    assert total(extended, namespace, "castslice") == 8 * GIB


def test_a_castslice_pod_runs_with_a_claim_where_policy_says_so(alone: Cluster, namespace: str) -> None:
    policy = {
        "apiVersion": "gpuslice.io/v1alpha1",
        "kind": "SlicePolicy",
        "metadata": {"name": namespace},
        "spec": {"rules": [{"name": "claims", "match": {"namespaces": [namespace]}, "backend": "dra"}]},
    }
    alone.kubectl("apply", "-f", "-", input=json.dumps(policy))
    try:

        def is_in_force() -> bool:
            # No pod is made, so nothing is left of the attempts before the webhook has seen the policy.
            manifest = json.dumps(_castslice("dra"))
            answer = alone.kubectl("apply", "-n", namespace, "-f", "-", "--dry-run=server", "-o=json", input=manifest)
            return "resourceClaims" in json.loads(answer)["spec"]

        eventually(is_in_force, "the webhook sees the policy")
        start(alone, namespace, _castslice("dra"))
        assert total(alone, namespace, "castslice") == 8 * GIB
    finally:
        alone.kubectl("delete", "slicepolicy", namespace)
