"""Claims that admission did not make count by what they ask for: a network card is no GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gpuslice.admission.cluster.claims_of_pods import ClaimSpec, gpus_in
from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.model.devices import GPU_CLASSES
from tests.unit.admission.making import Object, admit, admitted, container, denied, pod, under

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.model.pods import PodClaim

MAXIMUM = {"maximum": {"devices": 1, "memory": "80Gi"}}
SIZES = (80 * 1024**3,)
SLICE = {"gpuslice.io/memory": "1Gi"}
WAYS: dict[str, tuple[Object, Object]] = {
    "castslice": ({"nvidia.com/gpu": 1}, {"castops.io/optimize": "true"}),
    "hami": ({"nvidia.com/gpumem": 100}, {}),
    "instaslice": ({"nvidia.com/mig-1g.5gb": 1}, {}),
    "kai": ({}, {"gpu-fraction": "0.5"}),
    "native": (SLICE, {}),
    "vcuda": ({"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4}, {}),
}


def knowing(context: Context, **gpus: int | None) -> Context:
    """A cluster in which these claims, or templates, ask for so many GPUs."""

    def claimed(_namespace: str, claims: tuple[PodClaim, ...]) -> Mapping[PodClaim, int | None]:
        return {
            claim: gpus.get((claim.resource_claim_name or claim.resource_claim_template_name or "").replace("-", "_"))
            for claim in claims
        }

    return replace(context, claimed_gpus=claimed)


def naming(*claims: Object, limits: Object | None = None, annotations: Object | None = None) -> Object:
    resources: Object = {"claims": [{"name": claim["name"]} for claim in claims]}
    if limits:
        resources["limits"] = limits
    return pod(container(resources=resources), annotations=annotations, resourceClaims=list(claims))


def of_template(name: str) -> Object:
    return {"name": f"{name}-claim", "resourceClaimTemplateName": name}


def existing(name: str) -> Object:
    return {"name": f"{name}-claim", "resourceClaimName": name}


# ---- beside a dialect ----


@pytest.mark.parametrize("dialect", WAYS)
@pytest.mark.parametrize("made", [of_template, existing])
def test_a_network_card_beside_a_slice_is_no_second_gpu(dialect: str, made: Any) -> None:  # noqa: ANN401 - a function
    limits, annotations = WAYS[dialect]
    asked = naming(made("nic"), limits=limits, annotations=annotations)
    context = knowing(Context(), nic=0)
    assert admit(asked, context).decision.outcome is Outcome.REWRITTEN
    once = admitted(asked, context)
    assert once["spec"]["resourceClaims"][0] == made("nic")
    assert admitted(once, context) == once


@pytest.mark.parametrize("dialect", WAYS)
def test_a_claim_of_a_gpu_beside_a_slice_is_refused_and_both_are_named(dialect: str) -> None:
    limits, annotations = WAYS[dialect]
    for made in (of_template("gpu"), existing("gpu"), of_template("gpuslice-1x1024mi-0c-0123456789abcdef")):
        asked = naming(made, limits=limits, annotations=annotations)
        message = denied(asked, knowing(Context(), gpu=1))
        assert f"the claim '{made['name']}' by spec.containers[0].resources.claims[0]" in message
        assert dialect in message


def test_a_claim_of_which_nothing_is_known_is_no_reason_to_refuse_a_slice() -> None:
    assert admit(naming(of_template("later"), limits=SLICE)).decision.outcome is Outcome.REWRITTEN


# ---- under a maximum ----


@pytest.mark.parametrize("made", [of_template, existing])
def test_a_network_card_passes_under_a_maximum(made: Any) -> None:  # noqa: ANN401 - a function
    context = knowing(under(MAXIMUM, gpu_sizes=SIZES), nic=0)
    assert admit(naming(made("nic")), context).decision.outcome is Outcome.UNTOUCHED
    assert admit(naming(made("nic"), limits=SLICE), context).decision.outcome is Outcome.REWRITTEN


@pytest.mark.parametrize("made", [of_template, existing])
def test_what_cannot_be_known_is_refused_under_a_maximum(made: Any) -> None:  # noqa: ANN401 - a function
    message = denied(naming(made("later")), under(MAXIMUM))
    assert message.startswith("spec.containers[0].resources.claims: the claim 'later-claim' is ")
    assert "create that before the pod" in message
    assert admit(naming(made("later")), under({"maximum": {"slots": 1}})).decision.outcome is Outcome.UNTOUCHED


def test_a_template_of_gpus_counts_as_whole_ones() -> None:
    context = knowing(under(MAXIMUM, gpu_sizes=SIZES), one=1, two=2)
    assert admit(naming(of_template("one")), context).decision.outcome is Outcome.UNTOUCHED
    assert "comes to 2 devices (two-claim)" in denied(naming(of_template("two")), context)
    beside = naming(of_template("one"), limits={"nvidia.com/gpu-shared": 1})
    assert "comes to 2 devices" in denied(beside, context)
    small = knowing(under({"maximum": {"memory": "4Gi"}}, gpu_sizes=SIZES), one=1)
    assert "comes to 80Gi of GPU memory" in denied(naming(of_template("one")), small)


def test_an_existing_claim_of_a_gpu_is_refused_under_a_maximum() -> None:
    context = knowing(under(MAXIMUM), gpu=1)
    assert "is the existing ResourceClaim 'gpu', which can be a GPU of another pod" in denied(
        naming(existing("gpu")), context
    )


def test_more_claims_than_can_be_asked_about_are_not_known() -> None:
    many = [of_template(f"nic{index}") for index in range(17)]
    context = knowing(under(MAXIMUM), **{f"nic{index}": 0 for index in range(17)})
    assert "cannot know what it gives" in denied(naming(*many), context)
    assert admit(naming(*many[:16]), context).decision.outcome is Outcome.UNTOUCHED


def test_no_answer_is_kept_that_the_cluster_can_change() -> None:
    context = under(MAXIMUM)
    answers: list[int | None] = [0, 1]
    changing = replace(context, claimed_gpus=lambda _namespace, claims: dict.fromkeys(claims, answers.pop()))
    asked = naming(existing("nic"))
    assert admit(asked, changing).decision.denial is not None
    assert admit(asked, changing).decision.denial is None


# ---- what a claim asks for ----


def spec(*requests: Object) -> ClaimSpec:
    return msgspec.convert({"devices": {"requests": list(requests)}}, ClaimSpec)


def exactly(name: str, **more: object) -> Object:
    return {"name": "r", "exactly": {"deviceClassName": name, **more}}


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        (spec(), 0),
        (spec(exactly("rdma.example.com", count=8)), 0),
        (spec(exactly("compute-domain-default-channel.nvidia.com", count=1)), 0),
        (spec(exactly("gpu.nvidia.com", count=1, allocationMode="ExactCount")), 1),
        (spec(exactly("mig.nvidia.com", count=3), exactly("gpu.gpuslice.io", count=2)), 5),
        (spec(exactly("gpu.nvidia.com", allocationMode="All")), 1_000_000),
        (spec(exactly("gpu.nvidia.com", count=1, adminAccess=True)), 1_000_000),
        (
            spec(
                {
                    "name": "r",
                    "firstAvailable": [
                        {"name": "a", "deviceClassName": "nic", "count": 9},
                        {"name": "b", "deviceClassName": "gpu.nvidia.com", "count": 2},
                        {"name": "c", "deviceClassName": "mig.nvidia.com", "count": 1},
                    ],
                }
            ),
            2,
        ),
    ],
)
def test_gpus_are_told_by_their_device_classes(asked: ClaimSpec, gpus: int) -> None:
    assert gpus_in(asked, GPU_CLASSES) == gpus
