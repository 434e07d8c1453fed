"""Where the pods are in the objects of a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.admission import workloads
from gpuslice.model.settings import DEFAULT_SETTINGS

if TYPE_CHECKING:
    from gpuslice.admission.workloads import Path

Object = dict[str, Any]

POD: Object = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
ASKING: Object = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}
TEMPLATE: Path = ("spec", "template")

#: Version and kind, and where such an object has pods.
KINDS: list[tuple[str, str, list[Path]]] = [
    ("v1", "Pod", [()]),
    ("v1", "PodTemplate", [("template",)]),
    ("v1", "ReplicationController", [TEMPLATE]),
    ("apps/v1", "Deployment", [TEMPLATE]),
    ("apps/v1", "StatefulSet", [TEMPLATE]),
    ("apps/v1", "DaemonSet", [TEMPLATE]),
    ("apps/v1", "ReplicaSet", [TEMPLATE]),
    ("batch/v1", "Job", [TEMPLATE]),
    ("batch/v1", "CronJob", [("spec", "jobTemplate", *TEMPLATE)]),
    (
        "kubeflow.org/v1",
        "PyTorchJob",
        [("spec", "pytorchReplicaSpecs", role, "template") for role in ("Master", "Worker")],
    ),
    ("argoproj.io/v1alpha1", "Rollout", [TEMPLATE]),
    ("serving.knative.dev/v1", "Service", [TEMPLATE]),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", [("spec", "replicatedJobs", at, "template", *TEMPLATE) for at in (0, 1)]),
    (
        "ray.io/v1",
        "RayCluster",
        [("spec", "headGroupSpec", "template"), ("spec", "workerGroupSpecs", 0, "template")],
    ),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        [("spec", "leaderWorkerTemplate", name) for name in ("leaderTemplate", "workerTemplate")],
    ),
    ("agents.x-k8s.io/v1alpha1", "Sandbox", [("spec", "podTemplate")]),
]


def holding(version: str, kind: str, paths: list[Path], pod: Object = POD) -> Object:
    """An object of that kind with the pod at the end of each way."""
    made: Any = {"apiVersion": version, "kind": kind, "metadata": {"name": "test"}}
    for path in paths:
        made = _with(made, path, pod)
    assert isinstance(made, dict)
    return made


def _with(node: Any, path: Path, pod: Object) -> Any:  # noqa: ANN401 - a part of an object
    if not path:
        return (node or {}) | pod
    step, *rest = path
    if isinstance(step, int):
        items = node or []
        return [*items[:step], _with(None, tuple(rest), pod)]
    node = node or {}
    return node | {step: _with(node.get(step), tuple(rest), pod)}


@pytest.mark.parametrize(("version", "kind", "paths"), KINDS, ids=[kind for _, kind, _ in KINDS])
def test_the_pods_of_a_workload_are_found_and_replaced(version: str, kind: str, paths: list[Path]) -> None:
    document = holding(version, kind, paths)
    before = repr(document)

    assert list(workloads.templates(document)) == paths
    changed = document
    for path in paths:
        changed = workloads.replaced(changed, path, workloads.at(document, path) | {"spec": "changed"})
    assert [workloads.at(changed, path)["spec"] for path in paths] == ["changed"] * len(paths)
    assert (changed["kind"], changed["metadata"]["name"] if paths != [()] else "test") == (kind, "test")
    assert repr(document) == before


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "text",
        {},
        POD,
        {"apiVersion": "v1", "kind": "Service"},
        {"apiVersion": "example.com/v1", "kind": "Pod", **POD},
        {"apiVersion": "apps/v1", "kind": "Deployment"},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": "x"}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "status": {"template": POD}, "metadata": {"template": POD}},
        {"apiVersion": 1, "kind": ["Pod"]},
        holding("apiextensions.k8s.io/v1", "CustomResourceDefinition", [("spec", "versions", 0, "schema", "default")]),
        holding("apps/v1", "ControllerRevision", [("data", *TEMPLATE)]),
        holding("kyverno.io/v1", "ClusterPolicy", [("spec", "rules", 0, "validate", "pattern")]),
        {"apiVersion": "monitoring.example/v1", "kind": "Monitor", **POD},
        holding("example.com/v1", "Thing", [TEMPLATE], {"spec": {"containers": []}}),
        holding("example.com/v1", "Thing", [TEMPLATE], {"spec": {"containers": ["main"]}}),
        holding("example.com/v1", "Thing", [TEMPLATE], {"spec": {"containers": [{"image": "i"}]}}),
    ],
)
def test_everything_else_has_no_pod(document: object) -> None:
    assert workloads.templates(document) == ()


def test_a_pod_is_taken_at_its_word() -> None:
    assert workloads.templates({"apiVersion": "v1", "kind": "Pod", "status": POD}) == ((),)


def test_an_alias_is_found_in_each_place() -> None:
    document = holding("example.com/v1", "Twice", [("spec", "first"), ("spec", "second")])
    document["spec"]["second"] = document["spec"]["first"]
    assert workloads.templates(document) == (("spec", "first"), ("spec", "second"))


def test_aliases_of_aliases_are_looked_at_once() -> None:
    node: Object = {}
    for _ in range(100):
        node = {"one": node, "other": node}
    assert workloads.templates({"apiVersion": "v1", "kind": "Bomb", "spec": node}) == ()


def test_an_object_inside_another_may_name_its_namespace() -> None:
    inner = holding("apps/v1", "Deployment", [TEMPLATE], POD | {"metadata": {"namespace": "ignored"}})
    outer = {"apiVersion": "v1", "kind": "Work", "metadata": {"namespace": "outer"}, "spec": {"manifests": [inner]}}
    (path,) = workloads.templates(outer)
    assert path == ("spec", "manifests", 0, "spec", "template")
    assert workloads.namespace_of(outer, path) == "outer"
    inner["metadata"]["namespace"] = "inner"
    assert workloads.namespace_of(outer, path) == "inner"
    assert workloads.namespace_of(POD, ()) == ""


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (
            {"apiVersion": "serving.example/v1", "kind": "Model", "spec": {"predictor": ASKING}},
            ("spec", "predictor", "resources"),
        ),
        (
            {"apiVersion": "v1", "kind": "Monitor", "spec": {"containers": [{"name": "a"}, ASKING]}},
            ("spec", "containers", 1, "resources"),
        ),
        (
            {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "TrainJob",
                "metadata": {"name": "tune"},
                "spec": {
                    "runtimeRef": {"name": "torch-distributed"},
                    "trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}},
                },
            },
            ("spec", "trainer", "resourcesPerNode"),
        ),
    ],
)
def test_what_asks_for_a_gpu_outside_of_a_template_is_told(document: Object, path: Path) -> None:
    assert workloads.requests_elsewhere(document, DEFAULT_SETTINGS) == (path,)


@pytest.mark.parametrize(
    "document",
    [
        holding("apps/v1", "Deployment", [TEMPLATE], {"spec": {"containers": [ASKING]}}),
        {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [ASKING]}},
        {"apiVersion": "v1", "kind": "AnyPolicy", "spec": {"example": ASKING}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"resources": {"requests": {"storage": "1Gi"}}}},
        {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": {"limits": {"nvidia.com/gpu": 4}}},
        {"apiVersion": "v1", "kind": "Thing", "spec": {"resources": {"limits": ["nvidia.com/gpu"]}}},
    ],
)
def test_what_is_in_a_template_or_asks_for_none_is_not(document: Object) -> None:
    assert workloads.requests_elsewhere(document, DEFAULT_SETTINGS) == ()


def test_a_place_is_shown_as_people_write_it() -> None:
    assert workloads.show(("spec", "groups", 0, "a.b/c", "template")) == "spec.groups[0][a.b/c].template"


def test_what_lacks_quotes_is_told_with_them() -> None:
    template = {
        "metadata": {"annotations": {"castops.io/optimize": True, "fine": "true"}, "labels": None},
        "spec": {"nodeSelector": {"generation": 3, "version": 1.10}},
    }
    assert workloads.unquoted(template) == [
        'metadata.annotations[castops.io/optimize]: is the boolean true, not a text; quote it: "true"',
        'spec.nodeSelector[generation]: is the number 3, not a text; quote it: "3"',
        "spec.nodeSelector[version]: is the number 1.1, not a text; quote it",
    ]
    assert workloads.unquoted({"metadata": []}) == []


def test_a_list_is_its_items() -> None:
    inner = {"apiVersion": "v1", "kind": "List", "items": [1, 2]}
    assert list(workloads.items_of({"apiVersion": "v1", "kind": "List", "items": [0, inner]})) == [0, 1, 2]


def test_a_list_of_one_kind_says_what_its_items_are() -> None:
    items = [{"metadata": {"name": "a"}}, {"apiVersion": "apps/v2", "kind": "Other"}]
    assert list(workloads.items_of({"apiVersion": "apps/v1", "kind": "DeploymentList", "items": items})) == [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}},
        {"apiVersion": "apps/v2", "kind": "Other"},
    ]


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "ListOfThings", "items": []},
        {"kind": "List"},
        {"kind": "PodList", "items": "none"},
        {"apiVersion": "v1", "kind": "AllowList", "metadata": {"name": "addresses"}, "items": [{"kind": "a"}]},
        None,
    ],
)
def test_what_only_looks_like_a_list_is_itself(document: object) -> None:
    assert list(workloads.items_of(document)) == [document]
