"""A warning says, when that can be known, that no node offers what a pod gets; the pod gets it all the same."""

from __future__ import annotations

import json

import msgspec
import pytest

from gpuslice.admission.cluster.offers import GpuNode, offered
from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.model.policies import Backend
from tests.unit.admission.making import admit, container, pod, response_of

SLOTS = pod(
    container(limits={"nvidia.com/gpu": "1"}),
    container("other", {"nvidia.com/gpu": "1"}),
    annotations={"castops.io/optimize": "true"},
)
CLAIM = pod(container(limits={"gpuslice.io/memory": "4Gi"}))
TOLD = (
    "gpuslice: no node offers nvidia.com/gpu-shared at the moment, and the pod waits until one does; if none will, "
    "give such pods claims, by a policy with the backend dra"
)


def test_nodes_offer_what_they_have_any_of() -> None:
    allocatable = {"cpu": "8", "hugepages-2Mi": "1Gi", "nvidia.com/gpu": "0", "nvidia.com/gpu-shared": "40"}
    node = {"metadata": {"name": "node"}, "status": {"allocatable": allocatable, "images": []}}

    assert offered(msgspec.json.decode(json.dumps(node), type=GpuNode)) == {"nvidia.com/gpu-shared"}
    assert offered(msgspec.json.decode('{"metadata": {"name": "new"}}', type=GpuNode)) == frozenset()


@pytest.mark.parametrize("there", [frozenset(), frozenset({"nvidia.com/gpu"})], ids=["nothing", "something-else"])
def test_what_no_node_offers_is_told_once_and_given(there: frozenset[str]) -> None:
    reviewed = admit(SLOTS, Context(offered=there))

    assert reviewed.decision.outcome is Outcome.REWRITTEN
    assert response_of(reviewed)["warnings"] == [TOLD]


@pytest.mark.parametrize("there", [None, frozenset({"nvidia.com/gpu-shared"})], ids=["unknown", "offered"])
def test_no_warning_of_what_is_offered_or_not_known(there: frozenset[str] | None) -> None:
    assert "warnings" not in response_of(admit(SLOTS, Context(offered=there)))


def test_claims_are_not_offered_as_resources() -> None:
    reviewed = admit(CLAIM, Context(offered=frozenset()))

    assert {given.backend for given in reviewed.decision.grants} == {Backend.DRA}
    assert "warnings" not in response_of(reviewed)
