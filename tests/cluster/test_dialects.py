"""Pods of every dialect, created through the real API server, with the webhook's own process behind it."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpuslice_cluster.clusters import Cluster, ClusterError
from tests.cluster.served import GPUSLICE, Served, created, serving
from tests.cluster.webhooks import webhook_name
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: One of each dialect: `whole` asks for a whole GPU in none, and `packed` has several pods.
PODS = sorted(path for path in EXAMPLES.glob("*.yaml") if path.stem not in {"packed", "whole"})
WRITTEN = (
    *("gpuslice.io/slice", "gpuslice.io/dialect", "gpuslice.io/policy", "gpuslice.io/backend"),
    *("gpuslice.io/claim-templates", "gpuslice.io/asked"),
)


@pytest.fixture(scope="module")
def webhook(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(cluster, tmp_path_factory.mktemp("webhook")) as served:
        served.start_template_maker()
        # The API server follows configurations by a watch.
        eventually(lambda: _is_called(served), "the webhook is called")
        yield served


def _is_called(served: Served) -> bool:
    pod = _example(EXAMPLES / "castslice.yaml", "probe")
    answer = created(served.cluster, served.namespace, pod, "--dry-run=server")
    return "gpuslice.io/dialect" in answer["metadata"]["annotations"]


def _example(path: Path, name: str) -> dict[str, Any]:
    pod: dict[str, Any] = yaml.safe_load(path.read_text())
    pod["metadata"]["name"] = name
    return pod


def _offline(pod: dict[str, Any], namespace: str) -> list[dict[str, Any]]:
    """What `gpuslice admit` makes of it for nodes that offer claims, as the first will: templates, and the pod last."""
    pod = copy.deepcopy(pod)
    pod["metadata"]["namespace"] = namespace
    answer = subprocess.run(
        [GPUSLICE, "admit", "--backend", "dra", "-f", "-", "-o", "yaml"],
        input=json.dumps(pod),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(yaml.safe_load_all(answer.stdout))


def _claims(served: Served, pod: dict[str, Any]) -> object:
    """What the pod would be given."""
    return created(served.cluster, served.namespace, pod, "--dry-run=server")["spec"].get("resourceClaims")


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@pytest.mark.parametrize("path", PODS, ids=lambda path: path.stem)
def test_a_pod_becomes_what_admit_says_it_will(webhook: Served, path: Path) -> None:
    pod = _example(path, f"same-{path.stem}")
    *templates, expected = _offline(pod, webhook.namespace)

    # `admit` knows of no GPUs.
    eventually(lambda: _claims(webhook, pod) == expected["spec"].get("resourceClaims"), "the webhook knows of none")
    made = created(webhook.cluster, webhook.namespace, pod)

    assert {name: made["metadata"]["annotations"].get(name) for name in WRITTEN} == {
        name: expected["metadata"]["annotations"].get(name) for name in WRITTEN
    }
    assert made["spec"].get("resourceClaims") == expected["spec"].get("resourceClaims")
    for container, wanted in zip(_containers(made), _containers(expected), strict=True):
        resources, asked = container["resources"], wanted.get("resources", {})
        assert resources.get("claims") == asked.get("claims")
        # The API server copies limits of extended resources to the requests.
        assert resources.get("limits", {}) == {name: str(value) for name, value in asked.get("limits", {}).items()}
    for template in templates:
        name = template["metadata"]["name"]
        webhook.cluster.kubectl(
            *("wait", "-n", webhook.namespace, "--for=create", f"resourceclaimtemplate/{name}", "--timeout=60s")
        )
        stored = json.loads(
            webhook.cluster.kubectl("get", "resourceclaimtemplate", "-n", webhook.namespace, name, "-o", "json")
        )
        assert stored["spec"]["spec"] == template["spec"]["spec"]


@pytest.mark.parametrize("path", [path for path in PODS if path.stem != "castslice"], ids=lambda path: path.stem)
def test_kubernetes_makes_the_claims_of_a_pod(webhook: Served, path: Path) -> None:
    pod = _example(path, f"claims-{path.stem}")
    wanted = created(webhook.cluster, webhook.namespace, pod)["spec"]["resourceClaims"]

    def claims() -> list[str]:
        stored = webhook.cluster.kubectl("get", "pod", "-n", webhook.namespace, pod["metadata"]["name"], "-o", "json")
        statuses = json.loads(stored)["status"].get("resourceClaimStatuses", ())
        return [status["name"] for status in statuses if status.get("resourceClaimName")]

    eventually(lambda: sorted(claims()) == sorted(claim["name"] for claim in wanted), "every claim is there")


@pytest.mark.parametrize(
    ("kind", "version", "extra"),
    [
        ("Deployment", "apps/v1", {"selector": {"matchLabels": {"app": "x"}}}),
        ("StatefulSet", "apps/v1", {"selector": {"matchLabels": {"app": "x"}}, "serviceName": "x"}),
        ("Job", "batch/v1", {}),
    ],
)
def test_pods_that_controllers_make_are_rewritten(
    webhook: Served, kind: str, version: str, extra: dict[str, Any]
) -> None:
    example = _example(EXAMPLES / "vcuda.yaml", "ignored")
    label = kind.lower()
    template = {
        "metadata": {"labels": {"app": "x", "kind": label}},
        "spec": example["spec"] | ({"restartPolicy": "Never"} if kind == "Job" else {}),
    }
    workload = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": label},
        "spec": {"template": template, **extra},
    }
    created(webhook.cluster, webhook.namespace, workload)

    def pods() -> list[dict[str, Any]]:
        answer = webhook.cluster.kubectl("get", "pods", "-n", webhook.namespace, f"-lkind={label}", "-o", "json")
        found: list[dict[str, Any]] = json.loads(answer)["items"]
        return found

    eventually(pods, "a pod is made")
    assert [pod["metadata"]["annotations"]["gpuslice.io/dialect"] for pod in pods()] == ["vcuda"]


def test_a_pod_that_asks_for_no_gpu_never_leaves_the_api_server(webhook: Served) -> None:
    plain = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main", "image": "x"}]}}
    before = _calls(webhook)

    made = created(webhook.cluster, webhook.namespace, plain | {"metadata": {"name": "plain"}})

    assert "annotations" not in made["metadata"]
    assert _calls(webhook) == before


def test_the_api_server_counts_the_calls_for_gpu_pods(webhook: Served) -> None:
    before = _calls(webhook)

    created(webhook.cluster, webhook.namespace, _example(EXAMPLES / "hami.yaml", "counted"))

    assert _calls(webhook) > before


def _calls(served: Served) -> int:
    """Of this webhook, as the API server itself counts them."""
    metrics = served.cluster.kubectl("get", "--raw", "/metrics")
    lines = [line for line in metrics.splitlines() if line.startswith("apiserver_admission_webhook_request_total{")]
    name = webhook_name(served.namespace, "pods.")
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if f'name="{name}' in line)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"tencent.com/vcuda-core": "150", "tencent.com/vcuda-memory": "4"}, "tencent.com/vcuda-core"),
        ({"nvidia.com/mig-9g.99gb": "1"}, "mig-9g.99gb"),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "150"}, "gpumem-percentage"),
        ({"nvidia.com/gpu-0gb": "1"}, "is not a size in GB"),
        ({"nvidia.com/mig-9g.99gb.shared": "1"}, "is not a replica of a MIG profile"),
        ({"koordinator.sh/gpu": "150"}, "neither 1 to 100 nor a multiple of 100"),
        ({"koordinator.sh/gpu-core": "200", "koordinator.sh/gpu-memory": "1Gi"}, "which none has"),
        ({"volcano.sh/vgpu-cores": "101"}, "above 100 percent"),
        ({"aliyun.com/gpu-core.percentage": "10"}, "no aliyun.com/gpu-mem"),
    ],
)
def test_a_malformed_request_is_refused_with_its_reason(
    webhook: Served, resources: dict[str, str], message: str
) -> None:
    container = {"name": "main", "image": "x", "resources": {"limits": resources}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}, "spec": {"containers": [container]}}

    with pytest.raises(ClusterError, match=message):
        created(webhook.cluster, webhook.namespace, pod)


def test_a_dry_run_leaves_nothing_behind(webhook: Served) -> None:
    pod = _example(EXAMPLES / "native.yaml", "dry")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"gpuslice.io/memory": "1234Mi"}

    made = created(webhook.cluster, webhook.namespace, pod, "--dry-run=server")

    name = made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    stored = webhook.cluster.kubectl("get", "resourceclaimtemplates", "-n", webhook.namespace, "-o", "name")
    assert name not in stored


@pytest.mark.parametrize("backend", ["extended", "dra", "gpu-manager"])
def test_a_policy_chooses_the_backend(webhook: Served, backend: str) -> None:
    label = f"backend-{backend}"
    rule = {"name": "chosen", "match": {"podSelector": {"matchLabels": {"try": label}}}, "backend": backend}
    policy = {
        "apiVersion": "gpuslice.io/v1alpha1",
        "kind": "SlicePolicy",
        "metadata": {"name": label},
        "spec": {"rules": [rule]},
    }
    webhook.cluster.kubectl("apply", "-f", "-", input=json.dumps(policy))
    try:
        pod = _example(EXAMPLES / "vcuda.yaml", label)
        pod["metadata"].setdefault("labels", {})["try"] = label

        def is_in_force() -> bool:
            made = created(webhook.cluster, webhook.namespace, pod, "--dry-run=server")
            return bool(made["metadata"]["annotations"]["gpuslice.io/policy"] == f"{label}/chosen")

        eventually(is_in_force, "the webhook sees the policy")
        made = created(webhook.cluster, webhook.namespace, pod)
    finally:
        webhook.cluster.kubectl("delete", "slicepolicy", label)

    assert made["metadata"]["annotations"]["gpuslice.io/backend"] == backend
    limits = made["spec"]["containers"][0]["resources"].get("limits", {})
    assert ("nvidia.com/gpu-shared" in limits) == (backend == "extended")
    assert ("resourceClaims" in made["spec"]) == (backend == "dra")
    assert ("tencent.com/vcuda-core" in limits) == (backend == "gpu-manager")


def test_metrics_count_what_the_api_server_sent(webhook: Served) -> None:
    def mutations() -> float:
        lines = [line for line in webhook.metrics().splitlines() if line.startswith("castslice_mutations_total")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    before = mutations()
    created(webhook.cluster, webhook.namespace, _example(EXAMPLES / "castslice.yaml", "measured"))

    assert mutations() > before
