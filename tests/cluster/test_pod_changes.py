"""What changes a pod with a slice after it was made, and what a pod as a whole asks for: neither is a way to a GPU.

Kubernetes itself sees to most of it; these hold it to that, because admission relies on it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice_cluster.clusters import Cluster, ClusterError
from tests.cluster.served import Served, created, serving
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

Object = dict[str, Any]


@pytest.fixture(scope="module")
def webhook(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(cluster, tmp_path_factory.mktemp("webhook")) as served:
        eventually(
            lambda: "resourceClaims" in _made(served, _sliced("probe"), "--dry-run=server")["spec"], "it is called"
        )
        yield served


def _sliced(name: str, **spec: Any) -> Object:  # noqa: ANN401 - fields of the API
    limits = {"gpuslice.io/memory": "1Gi", "cpu": "1", "memory": "1Gi"}
    return _pod(name, {"resources": {"limits": limits}}, **spec)


def _pod(name: str, container: Object | None = None, **spec: Any) -> Object:  # noqa: ANN401 - fields of the API
    containers = [{"name": "main", "image": "x", **(container or {})}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def _made(webhook: Served, pod: Object, *options: str) -> Object:
    return created(webhook.cluster, webhook.namespace, pod, *options)


def _change(webhook: Served, name: str, subresource: str, spec: Object) -> Object:
    changed: Object = json.loads(
        webhook.cluster.kubectl(
            *("patch", "pod", name, "-n", webhook.namespace, "--subresource", subresource, "-o", "json"),
            *("--type", "strategic", "-p", json.dumps({"spec": spec})),
        )
    )
    return changed


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu-shared", "gpuslice.io/memory"])
def test_a_resize_of_a_pod_with_slots_changes_cpu_and_nothing_of_a_gpu(webhook: Served, resource: str) -> None:
    name = f"resized-{resource.replace('/', '-')}"
    limits = {"nvidia.com/gpu-shared": "1", "cpu": "1", "memory": "1Gi"}
    _made(webhook, _pod(name, {"resources": {"limits": limits}}))

    with pytest.raises(ClusterError, match="only cpu and memory resources are mutable"):
        _resize(webhook, name, {resource: "9"})

    (main,) = _resize(webhook, name, {"cpu": "2"})["spec"]["containers"]
    assert main["resources"]["limits"] == limits | {"cpu": "2"}


def test_a_pod_with_a_claim_is_not_resized(webhook: Served) -> None:
    """Kubernetes 1.36 takes a container's claims for a change, so that it refuses every resize; 1.37 does not."""
    _made(webhook, _sliced("more-cpu"))

    with pytest.raises(ClusterError, match="only cpu and memory resources are mutable"):
        _resize(webhook, "more-cpu", {"cpu": "2"})


def _resize(webhook: Served, name: str, amounts: dict[str, str]) -> Object:
    resources = {"limits": amounts, "requests": amounts}
    return _change(webhook, name, "resize", {"containers": [{"name": "main", "resources": resources}]})


@pytest.mark.parametrize(
    "resources", [{"limits": {"nvidia.com/gpu": "1"}}, {"claims": [{"name": "gpuslice-0"}]}], ids=["name", "claim"]
)
def test_an_ephemeral_container_has_no_gpu(webhook: Served, resources: Object) -> None:
    name = f"debugged-{next(iter(resources))}"
    _made(webhook, _sliced(name))
    debugger = {"name": "debugger", "image": "x"}

    with pytest.raises(ClusterError, match="resources: Forbidden: cannot be set for an Ephemeral Container"):
        _change(webhook, name, "ephemeralcontainers", {"ephemeralContainers": [{**debugger, "resources": resources}]})

    after = _change(webhook, name, "ephemeralcontainers", {"ephemeralContainers": [debugger]})
    assert [each.get("resources") or {} for each in after["spec"]["ephemeralContainers"]] == [{}]


def test_a_pod_as_a_whole_asks_for_no_gpu(webhook: Served) -> None:
    asked = _pod("whole", resources={"limits": {"cpu": "1", "nvidia.com/gpu": "1"}})
    with pytest.raises(
        ClusterError, match=r"gpuslice: spec.resources.limits\[nvidia.com/gpu\]: a pod as a whole has cpu"
    ):
        _made(webhook, asked)
    many = {f"a/{number:x}": "0" for number in range(20_000)}
    asked = _pod("many", resources={"limits": {**many, "nvidia.com/gpu": "1"}})
    with pytest.raises(ClusterError, match=r"gpuslice: spec.resources"):
        _made(webhook, asked)

    beside = _made(webhook, _sliced("beside", resources={"limits": {"cpu": "2", "memory": "2Gi"}}))
    assert beside["spec"]["containers"][0]["resources"]["claims"]
    assert beside["spec"]["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}


def test_a_misspelt_annotation_is_told_by_the_api_server(webhook: Served) -> None:
    asked = _pod("misspelt")
    asked["metadata"]["annotations"] = {"gpuslice.io/fracton": "0.5"}
    with pytest.raises(ClusterError, match=r"you meant gpuslice\.io/fraction"):
        _made(webhook, asked)
