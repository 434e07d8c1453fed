"""From a pod in any dialect to an enforced slice inside its container, with nothing simulated but the GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice_cluster.clusters import ClusterError
from tests.e2e.gpus import GIB, devices, filled, gpu_pod, is_refused, total
from tests.e2e.pods import CUDA_TEST, read, run, start
from tests.waiting import eventually

if TYPE_CHECKING:
    from gpuslice_cluster.clusters import Cluster

OUT_OF_MEMORY = 2
#: A dialect's way of asking (limits, annotations, labels), and the GiB that it gives on an A100-40GB.
ASKING: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str], int]] = {
    "native": ({"gpuslice.io/memory": "6Gi"}, {}, {}, 6),
    "hami": ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}, {}, {}, 4),
    "vcuda": ({"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "12"}, {}, {}, 3),
    "kai": ({}, {"gpu-fraction": "0.25"}, {}, 10),
    "runai": ({}, {}, {"gpu-memory": "1024"}, 1),
    "timeslicing": ({"nvidia.com/gpu.shared": "1"}, {}, {}, 4),
    "volcano": ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3072"}, {}, {}, 3),
    "aliyun": ({"aliyun.com/gpu-mem": "2"}, {}, {}, 2),
    "koordinator": ({"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory": "4Gi"}, {}, {}, 4),
    "nos": ({"nvidia.com/gpu-2gb": "1"}, {}, {}, 2),
}


@pytest.fixture
def each(alone: Cluster, namespace: str) -> Cluster:
    """One pod of each of these dialects."""
    pods = []
    for name, (limits, said, labels, _) in ASKING.items():
        asking = gpu_pod(name, limits, said)
        asking["metadata"]["labels"] |= labels
        pods.append(asking)
    start(alone, namespace, *pods)
    return alone


def test_pods_of_all_dialects_share_one_gpu_and_each_sees_its_slice(each: Cluster, namespace: str) -> None:
    assert len(set(devices(each, namespace))) == 1
    sizes = {name: gib * GIB for name, (*_, gib) in ASKING.items()}
    assert {name: total(each, namespace, name) for name in ASKING} == sizes
    for name, size in sizes.items():
        assert "failed with 2" in is_refused(each, namespace, name, "cuda-test", "hold", str(size + 1))
        assert filled(each, namespace, name, GIB) == (size, OUT_OF_MEMORY)


def test_a_container_cannot_raise_its_limit(alone: Cluster, namespace: str) -> None:
    start(alone, namespace, gpu_pod("root", {"gpuslice.io/memory": "1Gi"}))
    try_to = ("sh", "-c")

    assert run(alone, namespace, "root", "id", "-u").strip() == "0"
    is_refused(alone, namespace, "root", *try_to, "echo > /etc/ld.so.preload")
    is_refused(alone, namespace, "root", *try_to, "rm /etc/ld.so.preload")
    is_refused(alone, namespace, "root", *try_to, "umount /etc/ld.so.preload")
    is_refused(alone, namespace, "root", *try_to, "for each in $(find /etc/gpuslice -type f); do echo > $each; done")
    # A shell that comes later, with another environment, is in the same slice.
    later = "env -i GPUSLICE_SIM=$GPUSLICE_SIM GPUSLICE_SESSION=other $(which cuda-test) memory"
    assert f"total {GIB}" in run(alone, namespace, "root", *try_to, later)


def test_all_processes_of_a_container_share_its_slice(alone: Cluster, namespace: str) -> None:
    start(alone, namespace, gpu_pod("shared", {"gpuslice.io/memory": "2Gi"}))
    run(alone, namespace, "shared", "sh", "-c", f"cuda-test hold {GIB} > /tmp/said 2>&1 &")
    eventually(lambda: "holding" in run(alone, namespace, "shared", "cat", "/tmp/said"), "the first holds its half")  # noqa: S108

    assert filled(alone, namespace, "shared", GIB // 4) == (GIB, OUT_OF_MEMORY)


def test_a_mig_pod_and_shared_pods_keep_to_different_gpus(alone: Cluster, namespace: str) -> None:
    pods = (gpu_pod("mig", {"nvidia.com/mig-1g.5gb": "1"}), gpu_pod("slice", {"gpuslice.io/memory": "1Gi"}))
    start(alone, namespace, *pods)
    (partition,), (share,) = devices(alone, namespace, "mig"), devices(alone, namespace, "slice")

    assert "-mig-1g-5gb" in partition
    assert not partition.startswith(share)
    assert total(alone, namespace, "mig") < 5 * GIB
    assert len(run(alone, namespace, "mig", "cuda-test", "devices").splitlines()) == 1
    # Of the partition nothing is left when its pod is gone: the whole GPU can be shared again.
    alone.kubectl("delete", "pod", "-n", namespace, "mig")
    start(alone, namespace, *(gpu_pod(f"whole-{number}", {"gpuslice.io/memory": "39Gi"}) for number in range(2)))


def test_a_deleted_pods_slice_is_free_at_once(alone: Cluster, namespace: str) -> None:
    size = {"gpuslice.io/memory": "40Gi"}
    start(alone, namespace, gpu_pod("first", size), gpu_pod("second", size))
    alone.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(gpu_pod("third", size)))
    eventually(lambda: "Unschedulable" in read(alone, namespace, "pod/third", ".status.conditions"), "there is no room")

    alone.kubectl("delete", "pod", "-n", namespace, "first")

    alone.kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/third", "--timeout=60s")
    assert filled(alone, namespace, "third", GIB) == (40 * GIB, OUT_OF_MEMORY)


def test_a_deployment_of_small_pods_packs_onto_the_fewest_gpus(alone: Cluster, namespace: str) -> None:
    small = gpu_pod("small", {"gpuslice.io/memory": "1Gi"})
    template = {"metadata": {"labels": {"app": "small"}}, "spec": small["spec"]}
    deployment: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "small"},
        "spec": {"replicas": 20, "selector": {"matchLabels": {"app": "small"}}, "template": template},
    }
    alone.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(deployment))
    alone.kubectl("rollout", "status", "-n", namespace, "deployment/small", "--timeout=240s")

    given = devices(alone, namespace)
    assert len(given) == 20
    assert len(set(given)) == 1


def test_containers_that_share_a_claim_share_its_slice(alone: Cluster, namespace: str) -> None:
    both = gpu_pod("both", annotations={"gpuslice.io/fraction": "1/4"})
    both["metadata"]["annotations"] |= {"gpuslice.io/containers": "main, helper", "gpuslice.io/sharing": "pod"}
    both["spec"]["containers"].append({"name": "helper", "image": CUDA_TEST, "command": ["sleep", "86400"]})
    start(alone, namespace, both)
    in_helper = ("exec", "-n", namespace, "both", "-c", "helper", "--")
    alone.kubectl(*in_helper, "sh", "-c", f"cuda-test hold {GIB} > /said 2>&1 &")
    eventually(lambda: "holding" in alone.kubectl(*in_helper, "cat", "/said"), "the helper holds its part")

    assert filled(alone, namespace, "both", GIB) == (9 * GIB, OUT_OF_MEMORY)


def test_a_pod_that_asks_for_more_than_a_gpu_has_is_refused(alone: Cluster, namespace: str) -> None:
    with pytest.raises(ClusterError, match=r"\[gpuslice.io/memory\]: asks for 400Gi"):
        start_briefly(alone, namespace, gpu_pod("huge", {"gpuslice.io/memory": "400Gi"}))


def test_a_pod_that_asks_for_a_gpu_that_is_not_there_waits_and_says_so(alone: Cluster, namespace: str) -> None:
    elsewhere = gpu_pod("elsewhere", {"gpuslice.io/memory": "60Gi"}, {"gpuslice.io/gpu-model": "A100-80GB"})
    with pytest.raises(ClusterError, match="timed out"):
        start_briefly(alone, namespace, elsewhere)
    assert "cannot allocate all claims" in read(alone, namespace, "pod/elsewhere", ".status.conditions")


def start_briefly(cluster: Cluster, namespace: str, manifest: dict[str, Any]) -> None:
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
    name = f"pod/{manifest['metadata']['name']}"
    eventually(lambda: "Unschedulable" in read(cluster, namespace, name, ".status.conditions"), "the scheduler looked")
    cluster.kubectl("wait", "-n", namespace, "--for=condition=Ready", name, "--timeout=1s")


def test_people_and_prometheus_see_whose_slice_it_is(alone: Cluster, namespace: str) -> None:
    start(alone, namespace, gpu_pod("seen", {"gpuslice.io/memory": "5Gi"}))
    within = ("--namespace", "gpuslice-system")
    agent = alone.kubectl("get", "pods", *within, "-lapp.kubernetes.io/name=gpuslice-agent", "-o=name").strip()

    assert f"{namespace}/seen" in alone.kubectl("exec", *within, agent, "--", "gpuslice", "ps", "-o", "wide")
    alone.kubectl("create", "serviceaccount", "prometheus", "--namespace", namespace)
    token = alone.kubectl("create", "token", "prometheus", "--namespace", namespace).strip()
    assert scrape(alone, agent, "") == "401"
    assert scrape(alone, agent, token) == "403"
    bound = f"--serviceaccount={namespace}:prometheus"
    alone.kubectl("create", "clusterrolebinding", namespace, "--clusterrole=gpuslice-metrics-reader", bound)
    try:
        other = alone.kubectl("create", "token", "prometheus", "--namespace", namespace).strip()
        metrics = scrape(alone, agent, other).splitlines()
    finally:
        alone.kubectl("delete", "clusterrolebinding", namespace)
    (limit,) = [line for line in metrics if "session_limit_bytes{" in line and f'namespace="{namespace}"' in line]
    assert 'pod="seen"' in limit
    assert 'model="A100-40GB"' in limit
    assert float(limit.rsplit(" ", 1)[1]) == 5 * GIB
    assert sum(line.startswith("gpuslice_gpu_healthy{") for line in metrics) == 2


SCRAPE = """
import sys, urllib.error, urllib.request
address = "http://127.0.0.1:9500/metrics"
headers = {"Authorization": f"Bearer {sys.stdin.read()}"}
try:
    print(urllib.request.urlopen(urllib.request.Request(address, headers=headers)).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, end="")
"""


def scrape(cluster: Cluster, agent: str, token: str) -> str:
    """The agent's metrics as the account with that token sees them, or with which status it is refused."""
    inside = ("exec", "--stdin", "--namespace", "gpuslice-system", agent, "--", "python3", "-c", SCRAPE)
    return cluster.kubectl(*inside, input=token)
