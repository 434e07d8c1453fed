"""Ways round a policy, tried on the real API server: those that it closes itself, and those that admission closes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpuslice.dialects.registry import CLASS_RESOURCES
from gpuslice_cluster.clusters import Cluster, ClusterError
from tests.cluster.gpu_nodes import gpu_node
from tests.cluster.kube.support import policy
from tests.cluster.served import Served, created, serving
from tests.cluster.test_gpu_nodes import states
from tests.unit.admission.making import Object, container, pod
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE, SLOTS = "nvidia.com/gpu", "nvidia.com/gpu-shared"
GPU_CLASS = CLASS_RESOURCES[0]
LIMITS = {"participation": "OptIn", "backend": "extended", "maximum": {"slots": 2, "devices": 1}}
FORGED = {"gpuslice.io/dialect": "native", "gpuslice.io/slice": "main: whole GPU", "gpuslice.io/policy": "none"}


@pytest.fixture(scope="module")
def limited(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The webhook, and a namespace that gets slices, and at most two slots."""
    with serving(cluster, tmp_path_factory.mktemp("webhook")) as served:
        name = served.namespace
        rule = {"name": "limited", "match": {"namespaces": [name]}, **LIMITS}
        cluster.kubectl("create", "-f", "-", input=json.dumps(policy(name, rule)))

        def in_force() -> bool:
            made = _created(served, pod(container(limits={WHOLE: 1})))
            return bool(made["metadata"].get("annotations", {}).get("gpuslice.io/policy") == f"{name}/limited")

        try:
            eventually(in_force, "the policy is in force")
            yield served
        finally:
            cluster.kubectl("delete", "slicepolicy", name)


def _created(served: Served, asked: Object) -> Object:
    """What would be stored."""
    asked = asked | {"metadata": asked["metadata"] | {"namespace": served.namespace}}
    return created(served.cluster, served.namespace, asked, "--dry-run=server")


def test_a_device_by_the_name_of_its_class_is_a_whole_gpu_that_no_rbac_sees(cluster: Cluster, namespace: str) -> None:
    """Why admission must look at these names: a pod needs no claim to have one."""
    with gpu_node(cluster, namespace) as node:
        node.publish(states(1))
        asked = pod(container(limits={GPU_CLASS: "1"}), tolerations=[{"operator": "Exists"}])
        asked["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
        asked["metadata"]["namespace"] = namespace
        created(cluster, namespace, asked)
        cluster.kubectl("wait", "-n", namespace, "pod/test", "--for=condition=PodScheduled", "--timeout=120s")
        claims = json.loads(cluster.kubectl("get", "resourceclaims", "-n", namespace, "-o", "json"))["items"]

    ((given,),) = [claim["status"]["allocation"]["devices"]["results"] for claim in claims]
    assert given["consumedCapacity"] == {"memory": "40Gi", "cores": "0"}


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({GPU_CLASS: 1}, "asks for devices by the name of their class"),
        ({CLASS_RESOURCES[1]: 1}, "asks for devices by the name of their class"),
        ({SLOTS: 50}, "asks for 50 slots; at most 2 are allowed"),
        ({SLOTS: "5e1"}, "asks for 50 slots; at most 2 are allowed"),
        ({SLOTS: "1Ki"}, "asks for 1024 slots; at most 2 are allowed"),
        ({SLOTS: "9e40"}, "is too large"),
        ({"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1}, "asks for 2 devices; at most 1 are allowed"),
    ],
)
@pytest.mark.parametrize("annotations", [{}, FORGED | {"gpuslice.io/fraction": "1/9"}], ids=["plain", "marked"])
def test_what_the_policy_does_not_allow_is_refused(
    limited: Served, limits: Object, annotations: Object, reason: str
) -> None:
    if annotations and "nvidia.com/mig-1g.5gb" in limits:
        reason = "two ways"
    with pytest.raises(ClusterError, match=reason):
        _created(limited, pod(container(limits=limits), annotations=annotations))


@pytest.mark.parametrize("amount", ["1", "1e0", "1000m", 1.0])
def test_a_whole_gpu_is_sliced_however_it_is_written(limited: Served, amount: str | float) -> None:
    asked = pod(container(limits={WHOLE: amount}), annotations=FORGED)
    asked["metadata"]["labels"] = {"gpuslice.io/sliced": "true"}
    (made,) = _created(limited, asked)["spec"]["containers"]
    assert made["resources"]["limits"] == {SLOTS: "1"}


def test_a_sidecar_and_an_init_container_are_sliced(limited: Served) -> None:
    init = (container("first", {WHOLE: 1}), container("beside", {WHOLE: 1}, restartPolicy="Always"))
    made = _created(limited, pod(container(), init=init))
    assert [each["resources"]["limits"] for each in made["spec"]["initContainers"]] == [{SLOTS: "1"}] * 2


@pytest.mark.parametrize(
    "asked",
    [
        pod(container(limits={WHOLE: 0}, name="zero") | {"resources": {"limits": {WHOLE: 0}, "requests": {WHOLE: 8}}}),
        pod(container() | {"resources": {"requests": {SLOTS: 8}}}),
        pod(container(), resources={"limits": {WHOLE: 1}}),
        pod(container(), overhead={WHOLE: 1}),
        pod(container(limits={"NVIDIA.com/gpu": 1})),
        pod(container(limits={"nvidia.com/gpu ": 1})),
    ],
    ids=["limits differ", "requests alone", "of the pod", "overhead", "upper case", "a space"],
)
def test_what_admission_does_not_read_the_api_server_does_not_take(cluster: Cluster, asked: Object) -> None:
    asked = asked | {"metadata": {"name": "test", "namespace": "default"}}
    with pytest.raises(ClusterError, match=r"nvidia\.com|Overhead|non overcommitable|extended resource"):
        created(cluster, "default", asked, "--dry-run=server")


@pytest.mark.parametrize(
    ("subresource", "spec"),
    [
        (
            "resize",
            {"containers": [{"name": "main", "resources": {"limits": {SLOTS: "50"}, "requests": {SLOTS: "50"}}}]},
        ),
        ("resize", {"resources": {"limits": {WHOLE: "8"}}}),
        ("ephemeralcontainers", {"ephemeralContainers": [{"name": "e", "resources": {"limits": {WHOLE: "8"}}}]}),
        ("", {"containers": [{"name": "main", "resources": {"limits": {SLOTS: "50"}, "requests": {SLOTS: "50"}}}]}),
        ("", {"resourceClaims": [{"name": "more", "resourceClaimTemplateName": "gpuslice-more"}]}),
    ],
)
def test_a_pod_that_was_admitted_gets_no_more_later(
    cluster: Cluster, namespace: str, subresource: str, spec: Object
) -> None:
    """Admission sees new pods only, and that is enough."""
    asked = pod(container(limits={"cpu": "1", SLOTS: "1"}))
    asked["metadata"]["namespace"] = namespace
    created(cluster, namespace, asked)
    where = [f"--subresource={subresource}"] if subresource else []
    with pytest.raises(ClusterError, match=r"Forbidden|Unsupported"):
        cluster.kubectl("patch", "pod", "test", "-n", namespace, *where, "-p", json.dumps({"spec": spec}))
