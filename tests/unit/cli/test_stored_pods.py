"""Pods as the API server holds them, back to what was created."""

from __future__ import annotations

from typing import Any

import pytest

from gpuslice.admission.context import Context
from gpuslice.cli.manifests.admitted import admit_object
from gpuslice.cli.replay import stored_pods
from gpuslice.cli.replay.outcomes import Outcomes


def _stored(**metadata: object) -> dict[str, Any]:
    return {
        "metadata": {"name": "web-5d4f-x", "namespace": "team", "uid": "1", "resourceVersion": "7", **metadata},
        "spec": {
            "nodeName": "node-1",
            "containers": [
                {
                    "name": "main",
                    "resources": {"limits": {"nvidia.com/gpumem": "1024"}, "requests": {"nvidia.com/gpumem": "1024"}},
                }
            ],
        },
        "status": {"phase": "Running"},
    }


def _owned(kind: str, name: str, **labels: str) -> dict[str, Any]:
    return _stored(ownerReferences=[{"kind": kind, "name": name, "controller": True}], labels=labels)


def test_what_server_and_scheduler_wrote_is_gone() -> None:
    created = stored_pods.as_created(_stored())
    assert created["metadata"] == {"name": "web-5d4f-x", "namespace": "team"}
    assert set(created) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(created["spec"]) == {"containers"}


@pytest.mark.parametrize(
    ("pod", "owner"),
    [
        (_stored(), "Pod team/web-5d4f-x"),
        (_owned("ReplicaSet", "web-5d4f", **{"pod-template-hash": "5d4f"}), "Deployment team/web"),
        (_owned("ReplicaSet", "web-5d4f"), "ReplicaSet team/web-5d4f"),
        (_owned("StatefulSet", "web"), "StatefulSet team/web"),
    ],
)
def test_a_pod_is_its_workloads(pod: dict[str, Any], owner: str) -> None:
    assert stored_pods.owner(pod) == owner


def test_a_pod_that_has_its_slice_is_shown_as_such() -> None:
    outcomes = Outcomes()
    first = admit_object(stored_pods.as_created(_stored()), "team", Context())
    outcomes.add("new", first)
    outcomes.add("running", admit_object(stored_pods.as_created(first.after), "team", Context()))
    new, running = (each.line for each in outcomes.workloads)
    assert (new.outcome, new.slice) == ("rewritten", "main: 1Gi memory")
    assert (running.outcome, running.slice) == ("untouched", "main: 1Gi memory")
    assert (running.dialect, running.why) == ("hami", "it has its slice already")


def test_pods_that_admission_is_not_asked_about_are_left() -> None:
    outcomes = Outcomes()
    outcomes.leave("there", "not asked", admit_object(stored_pods.as_created(_stored()), "team", Context()))
    (left,) = outcomes.workloads
    assert (left.line.outcome, left.line.why, outcomes.others) == ("untouched", "not asked", 0)
