"""Where the pods are in the objects of a manifest."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.admission import workloads

POD = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}


@pytest.mark.parametrize(
    ("version", "kind", "path"),
    [
        ("v1", "Pod", ()),
        ("v1", "PodTemplate", ("template",)),
        ("v1", "ReplicationController", ("spec", "template")),
        ("apps/v1", "Deployment", ("spec", "template")),
        ("apps/v1", "StatefulSet", ("spec", "template")),
        ("apps/v1", "DaemonSet", ("spec", "template")),
        ("apps/v1", "ReplicaSet", ("spec", "template")),
        ("batch/v1", "Job", ("spec", "template")),
        ("batch/v1", "CronJob", ("spec", "jobTemplate", "spec", "template")),
    ],
)
def test_the_pod_of_a_workload_is_found_and_replaced(version: str, kind: str, path: tuple[str, ...]) -> None:
    document: dict[str, Any] = {"apiVersion": version, "kind": kind} | (POD if not path else {})
    inner: dict[str, Any] = POD
    for step in reversed(path):
        inner = {step: inner}
    document |= inner
    assert workloads.template_path(document) == path
    template = workloads.template_of(document, path)
    changed = workloads.with_template(document, path, template | {"spec": {"changed": True}})
    assert workloads.template_of(changed, path)["spec"] == {"changed": True}
    assert changed["kind"] == kind


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "text",
        {},
        {"apiVersion": "v1", "kind": "Service"},
        {"apiVersion": "example.com/v1", "kind": "Pod"},
        {"apiVersion": "apps/v1", "kind": "Deployment"},
        {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": "x"}},
        {"apiVersion": 1, "kind": ["Pod"]},
    ],
)
def test_everything_else_has_no_pod(document: object) -> None:
    assert workloads.template_path(document) is None


def test_a_list_is_its_items() -> None:
    inner = {"apiVersion": "v1", "kind": "List", "items": [1, 2]}
    assert list(workloads.items_of({"apiVersion": "v1", "kind": "List", "items": [0, inner]})) == [0, 1, 2]
    assert list(workloads.items_of({"kind": "ListOfThings"})) == [{"kind": "ListOfThings"}]
