"""What a ResourceClaim gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.node.claims import resource_claims
from gpuslice.node.claims.resource_claims import Allocated, ClaimGoneError, ClaimReference
from gpuslice.node.errors import AgentError

REFERENCE = ClaimReference("team", "trainer-gpu", "11111111-2222")


def result(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of the API
    return {"request": "gpu", "driver": "gpu.gpuslice.io", "pool": "node-1/gpuslice", "device": "gpu-0"} | changes


def document(*results: dict[str, Any], **status: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of the API
    return {
        "metadata": {"namespace": "team", "name": "trainer-gpu", "uid": REFERENCE.uid, "labels": {}},
        "spec": {"devices": {}},
        "status": {"allocation": {"devices": {"results": list(results)}}} | status,
    }


def test_amounts_are_read_as_kubernetes_writes_them() -> None:
    claim = resource_claims.read(
        document(
            result(consumedCapacity={"memory": "4Gi", "cores": "30"}, shareID="s-1"),
            result(device="gpu-1", consumedCapacity={"memory": "1536Mi"}),
            result(device="gpu-2"),
        ),
        REFERENCE,
    )
    assert [(each.memory_bytes, each.core_percent, each.share_id) for each in claim.allocated] == [
        (4 << 30, 30, "s-1"), (1536 << 20, 0, None), (None, 0, None),
    ]  # fmt: skip


def test_an_alternative_counts_as_its_request() -> None:
    (allocated,) = resource_claims.read(document(result(request="gpu/of-40gi")), REFERENCE).allocated
    assert allocated.request == "gpu"


def test_devices_of_other_drivers_are_not_ours() -> None:
    assert resource_claims.read(document(result(driver="net.example.com")), REFERENCE).allocated == ()


def test_the_pod_is_the_first_that_may_use_it() -> None:
    reserved = [
        {"apiGroup": "example.com", "resource": "gangs", "name": "gang", "uid": "0"},
        {"resource": "pods", "name": "trainer", "uid": "1"},
        {"resource": "pods", "name": "other", "uid": "2"},
    ]
    claim = resource_claims.read(document(result(), reservedFor=reserved), REFERENCE)
    assert (claim.pod, claim.pod_uid) == ("trainer", "1")


def test_a_claim_that_was_made_anew_under_the_same_name_is_another() -> None:
    with pytest.raises(ClaimGoneError, match="another by now"):
        resource_claims.read(document(result()), ClaimReference("team", "trainer-gpu", "33333333"))


def test_a_claim_that_was_deallocated_is_gone() -> None:
    with pytest.raises(ClaimGoneError, match="not allocated"):
        resource_claims.read(document() | {"status": {}}, REFERENCE)


@pytest.mark.parametrize("amount", ["much", "-1Gi", "0.5", ""])
def test_an_amount_that_makes_no_sense_names_the_device(amount: str) -> None:
    with pytest.raises(AgentError, match="device gpu-0"):
        resource_claims.read(document(result(consumedCapacity={"memory": amount})), REFERENCE)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["metadata", "status", "uid"]), inner),
)


@given(json_like)
def test_whatever_the_api_server_says_is_an_error_and_no_crash(answer: object) -> None:
    with pytest.raises(AgentError):
        resource_claims.read(answer, REFERENCE)


@given(st.integers(0, 2**63 - 1), st.integers(0, 100))
def test_every_amount_comes_back(memory: int, cores: int) -> None:
    consumed = {"memory": str(memory), "cores": cores}
    (allocated,) = resource_claims.read(document(result(consumedCapacity=consumed)), REFERENCE).allocated
    assert allocated == Allocated(
        request="gpu", pool="node-1/gpuslice", device="gpu-0", memory_bytes=memory, core_percent=cores
    )
