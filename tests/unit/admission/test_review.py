"""The protocol: what an API server sends, and what it gets back."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.admission.review import ReviewError, examine, review
from tests.unit.admission.making import admit, admitted, container, denied, pod, response_of, review_of, under

HAMI = container(limits={"nvidia.com/gpumem": 1000})


def test_a_pod_that_asks_for_no_gpu_gets_no_patch() -> None:
    asks_nothing = pod(
        container(limits={"cpu": "1", "example.com/nic": "1"}), annotations={"castops.io/optimize": "true"}
    )
    assert response_of(admit(asks_nothing)) == {"uid": "e0fcbb83-7f0c-4d8b-a8c3-2d0c4f3a9d11", "allowed": True}


def test_a_pod_that_asks_gets_a_json_patch_and_an_audit_trail() -> None:
    response = response_of(admit(pod(HAMI)))
    assert response["patchType"] == "JSONPatch"
    assert {operation["op"] for operation in json.loads(base64.b64decode(response["patch"]))} == {"add", "remove"}
    assert response["auditAnnotations"] == {"outcome": "rewritten", "dialect": "hami", "policy": "none"}


def test_what_happened_is_written_on_the_pod() -> None:
    metadata = admitted(pod(HAMI))["metadata"]
    assert metadata["labels"] == {"gpuslice.io/sliced": "true"}
    assert metadata["annotations"] == {
        "gpuslice.io/slice": "main: 1000Mi memory",
        "gpuslice.io/dialect": "hami",
        "gpuslice.io/backend": "dra",
        "gpuslice.io/policy": "none",
        "gpuslice.io/claim-templates": '[{"memory":1048576000}]',
        "gpuslice.io/asked": "main: nvidia.com/gpumem=1000",
    }


def test_a_malformed_request_is_told_from_one_that_is_not_allowed() -> None:
    malformed = response_of(admit(pod(container(limits={"tencent.com/vcuda-core": 150}))))["status"]
    assert (malformed["code"], malformed["reason"]) == (422, "Invalid")
    forbidden = response_of(admit(pod(HAMI), under({"maximum": {"memory": "1Mi"}})))["status"]
    assert (forbidden["code"], forbidden["reason"]) == (403, "Forbidden")


def test_a_denial_names_the_field_the_reason_and_a_remedy() -> None:
    message = denied(pod(container("a"), container("b", {"tencent.com/vcuda-core": 150})))
    assert message.startswith("spec.containers[1].resources.limits[tencent.com/vcuda-core]: 150 is neither")
    assert "; write 100 or 200" in message


def test_a_dry_run_gives_the_same_answer() -> None:
    assert admit(pod(HAMI)).body == admit(pod(HAMI), dryRun=True).body


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"kind": {"group": "", "version": "v1", "kind": "Service"}},
        {"subResource": "resize"},
    ],
)
def test_what_is_not_a_new_pod_passes(request_: dict[str, Any]) -> None:
    reviewed = admit(pod(HAMI), **request_)
    assert reviewed.decision.outcome is Outcome.UNTOUCHED
    assert set(response_of(reviewed)) == {"uid", "allowed"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"apiVersion": "admission.k8s.io/v1beta1"}, "set admissionReviewVersions to v1"),
        ({"kind": "Pod"}, "is a 'Pod'"),
        ({"request": None}, "not an AdmissionReview"),
        ({"request": {"kind": {"kind": "Pod"}}}, "uid"),
        ({"request": {"uid": "", "kind": {"kind": "Pod"}}}, "request.uid is empty"),
        ({"request": {"uid": 7, "kind": {"kind": "Pod"}}}, "uid"),
    ],
)
def test_what_is_no_review_is_a_review_error(change: dict[str, Any], reason: str) -> None:
    body = json.dumps(json.loads(review_of(pod(HAMI))) | change).encode()
    with pytest.raises(ReviewError, match=reason):
        review(body, Context())


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{", b"GET / HTTP/1.1", b"\xff\xfe", b'"' + b"a" * 1000, b"1" * 5000]
)
def test_bytes_that_are_no_json_are_a_review_error(body: bytes) -> None:
    with pytest.raises(ReviewError):
        review(body, Context())


@pytest.mark.parametrize(
    "object_",
    [
        None,
        [],
        "pod",
        {"spec": []},
        {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": []}}}]}},
        {"metadata": {"annotations": {"gpu-fraction": 0.5}}},
    ],
)
def test_an_object_that_is_no_pod_is_denied_with_the_place(object_: object) -> None:
    response = response_of(examine(review_of(pod(), object=object_), Context()))
    assert not response["allowed"]
    assert "this is not a pod" in response["status"]["message"]


def test_warnings_are_few_and_short() -> None:
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-limit": "0.7", "gpu-memory-limit": "1000"}
    beside = container("beside", {"nvidia.com/gpumem": 1000, "nvidia.com/priority": 1})
    response = response_of(admit(pod(container(), beside, annotations=annotations, schedulerName="x" * 1000)))
    assert len(response["warnings"]) == 4
    assert all(len(warning) <= 256 for warning in response["warnings"])
