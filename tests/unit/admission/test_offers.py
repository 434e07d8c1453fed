"""A warning says, when that can be known, that no node offers what a pod gets; the pod gets it all the same."""

from __future__ import annotations

import json

import msgspec
import pytest

from gpuslice.admission.cluster import offers
from gpuslice.admission.cluster.offers import GpuNode, NodeOffer, offered, together
from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.model.policies import Backend
from gpuslice.model.settings import Settings
from tests.unit.admission.making import admit, container, pod, response_of, under

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


NODE = {"cpu": "8", "hugepages-2Mi": "1Gi", "nvidia.com/gpu": "0", "nvidia.com/gpu-shared": "40"}
CLAIMS, IN_SLOTS = frozenset({Backend.DRA}), frozenset({Backend.EXTENDED})


def node(allocatable: dict[str, str]) -> NodeOffer:
    document = {"metadata": {"name": "node"}, "status": {"allocatable": allocatable, "images": []}}
    return offered(msgspec.json.decode(json.dumps(document), type=GpuNode))


def backend_of(asked: dict[str, object], context: Context) -> set[Backend]:
    return {given.backend for given in admit(asked, context).decision.grants}


def test_nodes_offer_what_they_have_any_of() -> None:
    assert node(NODE) == NodeOffer(now=frozenset({"nvidia.com/gpu-shared"}), none=frozenset({"nvidia.com/gpu"}))
    assert offered(msgspec.json.decode('{"metadata": {"name": "new"}}', type=GpuNode)) == NodeOffer()
    both = frozenset({"nvidia.com/gpu-shared", "example.com/nic"})
    assert together([node(NODE), node({"example.com/nic": "1"})]) == both
    assert together([]) is None


@pytest.mark.parametrize(
    ("amount", "published", "backends"),
    [
        ("40", False, IN_SLOTS),
        ("40", True, CLAIMS | IN_SLOTS),
        (None, True, CLAIMS),
        (None, False, frozenset()),
        # Its agent starts again, or the node has changed to claims.
        ("0", False, IN_SLOTS),
        ("0", True, CLAIMS),
    ],
)
def test_how_gpus_are_offered_is_seen_from_nodes_and_what_they_publish(
    amount: str | None,
    published: bool,  # noqa: FBT001 - a parameter
    backends: frozenset[Backend],
) -> None:
    nodes = [node({} if amount is None else {"nvidia.com/gpu-shared": amount})]
    assert offers.backends(nodes, "nvidia.com/gpu-shared", published=published) == backends


@pytest.mark.parametrize(
    ("nodes", "slots", "claim"),
    [
        (frozenset(), Backend.EXTENDED, Backend.DRA),  # without a cluster
        (CLAIMS, Backend.DRA, Backend.DRA),
        (IN_SLOTS, Backend.EXTENDED, Backend.EXTENDED),
        (CLAIMS | IN_SLOTS, Backend.EXTENDED, Backend.DRA),
    ],
)
def test_a_pod_is_given_what_nodes_offer_and_where_they_offer_both_what_its_dialect_is_used_to(
    nodes: frozenset[Backend], slots: Backend, claim: Backend
) -> None:
    context = Context(node_backends=nodes)
    assert (backend_of(SLOTS, context), backend_of(CLAIM, context)) == ({slots}, {claim})


def test_what_a_policy_says_counts_more_than_what_nodes_offer() -> None:
    assert backend_of(CLAIM, under({"backend": "dra"}, node_backends=IN_SLOTS)) == CLAIMS
    assert backend_of(SLOTS, under({"targetResource": "example.com/slot"}, node_backends=CLAIMS)) == IN_SLOTS


def test_without_a_cluster_the_configured_backend_of_nodes_counts() -> None:
    context = Context(settings=Settings(node_backend=Backend.EXTENDED))
    assert backend_of(CLAIM, context) == IN_SLOTS


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


WHOLE = pod(container(limits={"nvidia.com/gpu": "1"}))


def test_a_whole_gpu_that_no_node_can_give_is_told_and_left_alone() -> None:
    reviewed = admit(WHOLE, Context(offered=frozenset({"nvidia.com/gpu-shared"}), node_backends=IN_SLOTS))

    assert reviewed.decision.outcome is Outcome.UNTOUCHED
    (warning,) = response_of(reviewed)["warnings"]
    assert "resources.limits[nvidia.com/gpu]: no node offers whole GPUs at the moment" in warning


@pytest.mark.parametrize(
    "context",
    [
        Context(),
        Context(offered=frozenset({"nvidia.com/gpu"}), node_backends=IN_SLOTS),
        Context(offered=frozenset(), node_backends=CLAIMS),  # the scheduler makes a claim of it
    ],
    ids=["unknown", "by-a-device-plugin", "by-claims"],
)
def test_a_whole_gpu_that_can_be_had_is_left_alone(context: Context) -> None:
    reviewed = admit(WHOLE, context)

    assert reviewed.decision.outcome is Outcome.UNTOUCHED
    assert "warnings" not in response_of(reviewed)
