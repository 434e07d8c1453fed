"""`gpuslice admit --cluster` against a real API server: it reads, says what would be, and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.cluster.kube.support import install_quotas
from tests.cluster.served import GPUSLICE

if TYPE_CHECKING:
    from gpuslice_cluster.clusters import Cluster

POLICY = """\
apiVersion: gpuslice.io/v1alpha1
kind: SlicePolicy
metadata: {name: tried}
spec: {rules: [{name: tried, match: {namespaceSelector: {matchLabels: {tier: research}}}, maximum: {memory: 2Gi}}]}
"""


def _replay(kubeconfig: Path, namespace: str, *options: str | Path, code: int) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [GPUSLICE, "admit", "--cluster", f"--kubeconfig={kubeconfig}", "-n", namespace, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "COLUMNS": "300"},
    )
    assert done.returncode == code, done.stderr
    return done


def _pod(name: str, limits: dict[str, str], **spec: object) -> dict[str, Any]:
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def _deployment(name: str, limits: dict[str, str]) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": _pod(name, limits)["spec"]}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_pods_that_are_there_are_replayed_with_the_clusters_quotas(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    install_quotas(cluster)
    cluster.kubectl("label", "namespace", namespace, "tier=research")
    quota = {
        "apiVersion": "gpuslice.io/v1alpha1",
        "kind": "GpuQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"memory": "2Gi"}},
    }
    for document in (
        quota,
        _deployment("web", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}),
        _pod("bad", {"tencent.com/vcuda-core": "150", "tencent.com/vcuda-memory": "4"}, nodeName="somewhere"),
        _pod("plain", {"cpu": "1"}),
    ):
        cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(document))
    cluster.kubectl("wait", "-n", namespace, "--for=jsonpath={.status.replicas}=3", "deployment/web", "--timeout=60s")
    before = cluster.kubectl("get", "pods,resourceclaimtemplates", "-n", namespace, "-o", "json")

    found = json.loads(_replay(cluster.kubeconfig, namespace, "-o", "json", code=1).stdout)

    denied, rewritten = found["workloads"]
    assert (denied["workload"], denied["outcome"], denied["pods"]) == (f"Pod {namespace}/bad", "denied", 1)
    assert "tencent.com/vcuda-core" in denied["why"]
    assert (rewritten["workload"], rewritten["outcome"]) == (f"Deployment {namespace}/web", "rewritten")
    assert (rewritten["pods"], rewritten["dialect"], rewritten["slice"]) == (3, "hami", "main: 1Gi memory")
    assert found["podsWithoutGpu"] == 1
    assert found["quotas"] == [
        {"namespace": namespace, "quota": "GpuQuota/small", "resource": "memory"}
        | {"used": "3Gi", "hard": "2Gi", "over": True}
    ]
    assert not found["unread"]
    shown = _replay(cluster.kubeconfig, namespace, code=1).stdout
    assert f"Deployment {namespace}/web" in shown
    assert "too much" in shown
    # Once, for all three.
    assert _replay(cluster.kubeconfig, namespace, "-o", "diff", code=1).stdout.count("nvidia.com/gpumem: '1024'") == 2
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.replace("2Gi", "1000Mi"))
    tried = json.loads(_replay(cluster.kubeconfig, namespace, "-o", "json", "--policy", policy, code=1).stdout)
    assert [each["outcome"] for each in tried["workloads"]] == ["denied", "denied"]
    assert {each["policy"] for each in tried["workloads"]} == {"tried/tried"}
    assert cluster.kubectl("get", "pods,resourceclaimtemplates", "-n", namespace, "-o", "json") == before


def test_a_user_who_may_read_pods_alone_is_told_what_was_assumed(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    cluster.kubectl("create", "role", "looks", "--verb=list", "--resource=pods", "-n", namespace)
    cluster.kubectl(
        "create", "rolebinding", "looks", "--role=looks", f"--serviceaccount={namespace}:default", "-n", namespace
    )
    token = cluster.kubectl("create", "token", "default", "-n", namespace).strip()
    pod = _pod("asks", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"})
    cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(pod))
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(Path(cluster.kubeconfig).read_text())
    kubeconfig.chmod(0o600)
    cluster.kubectl("config", "set-credentials", "looker", f"--token={token}", f"--kubeconfig={kubeconfig}")
    cluster.kubectl("config", "set-context", "--current", "--user=looker", f"--kubeconfig={kubeconfig}")

    done = _replay(kubeconfig, namespace, code=0)

    assert f"Pod {namespace}/asks" in done.stdout
    for what in ("slicepolicies", "namespaces", "nodes", "resourcequotas"):
        assert f"warning: {what} cannot be read" in done.stderr
    everywhere = subprocess.run(
        [GPUSLICE, "admit", "--cluster", f"--kubeconfig={kubeconfig}"], capture_output=True, text=True, check=False
    )
    assert everywhere.returncode == 1
    assert "write -n NAMESPACE" in everywhere.stderr
