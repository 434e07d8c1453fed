"""What holds for every pod, and for every sequence of bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.admission.claims.claim_templates import templates_in
from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.admission.review import ReviewError, examine, review
from gpuslice.dialects import registry
from gpuslice.model.pods import Pod
from gpuslice.model.policies import Backend
from tests.unit.admission.making import Object, admit, container, patched, pod, response_of, review_of, under

#: All that the dialects declare, so that a new one is among them.
GPU_RESOURCES = [
    "nvidia.com/gpu",
    "nvidia.com/gpu-shared",
    *(resource.name for dialect in registry.DIALECTS for resource in dialect.resources),
    *(f"{family.prefix}{end}" for family in registry.BY_FAMILY for end in family.examples[:2]),
]
ANNOTATIONS = {
    "castops.io/optimize": ["true", "false"],
    "castops.io/slice-ratio": ["1", "4", "x"],
    "castops.io/workload-type": ["training", "gaming"],
    "gpu-fraction": ["0.5", "2"],
    "gpu-memory": ["100"],
    "gpu-fraction-num-devices": ["2"],
    "gpuslice.io/fraction": ["1/3", "1"],
    "gpuslice.io/containers": ["c0", "c0,c1", "i0"],
    "gpuslice.io/sharing": ["pod"],
    "gpuslice.io/gpu-model": ["T4"],
    "gpuslice.io/slice": ["c0: everything"],
    "gpuslice.io/dialect": ["native"],
}

quantities = st.sampled_from([0, 1, "1", "2", "30", "100", "200", "1Gi", "500m", "x", -1])
limits = st.dictionaries(st.sampled_from([*GPU_RESOURCES, "cpu"]), quantities, max_size=3)
pod_annotations = st.dictionaries(st.sampled_from(sorted(ANNOTATIONS)), st.integers(0, 2), max_size=4).map(
    lambda chosen: {key: ANNOTATIONS[key][index % len(ANNOTATIONS[key])] for key, index in chosen.items()}
)
pod_labels = st.dictionaries(
    st.sampled_from([field.name for field in registry.fields_of_pods() if field.kind == "labels"]),
    st.sampled_from(["0.5", "2", "100"]),
    max_size=1,
)
policies = st.sampled_from(
    [
        Context(),
        Context(serves_dra=False),
        Context(backend=Backend.DRA),
        Context(backend=Backend.EXTENDED),
        under({"participation": "OptIn", "tolerations": [{"key": "gpu", "operator": "Exists"}]}),
        under({"participation": "OptIn", "backend": "dra", "nodeSelector": {"a": "b"}}),
        under({"backend": "gpu-manager"}),
        under({"participation": "OptIn", "maximum": {"slots": 2, "devices": 1, "memory": "20Gi"}}),
        under({"maximum": {"cores": 50, "memory": "20Gi"}, "defaults": {"cores": 20}, "backend": "extended"}),
        under({"targetResource": "nvidia.com/slots", "maximum": {"slots": 9}, "dialects": ["castslice", "native"]}),
    ]
)


@st.composite
def pods(draw: st.DrawFn) -> Object:
    def containers(prefix: str, most: int, least: int) -> list[Object]:
        return [
            container(
                f"{prefix}{index}",
                draw(limits),
                **draw(st.sampled_from([{}, {"restartPolicy": "Always"}] if prefix == "i" else [{}])),
            )
            for index in range(draw(st.integers(least, most)))
        ]

    made = pod(*containers("c", 3, 1), init=tuple(containers("i", 2, 0)), annotations=draw(pod_annotations))
    if labels := draw(pod_labels):
        made["metadata"]["labels"] = labels
    for each in made["spec"]["containers"]:
        if draw(st.booleans()):
            each["resources"]["requests"] = dict(each["resources"]["limits"])
    return made


@given(pods(), policies)
@settings(max_examples=400, deadline=None)
def test_a_pod_that_was_admitted_is_left_alone_when_it_comes_again(asked: Object, context: Context) -> None:
    first = admit(asked, context)
    if first.decision.denial is not None:
        return
    once = patched(asked, first)
    second = admit(once, context)
    assert second.decision.denial is None, second.decision.denial
    assert patched(once, second) == once


@given(pods(), policies)
@settings(max_examples=200, deadline=None)
def test_the_patch_gives_a_pod_in_which_every_claim_exists_once_and_is_used(asked: Object, context: Context) -> None:
    reviewed = admit(asked, context)
    if reviewed.decision.denial is not None:
        return
    result = patched(asked, reviewed)
    msgspec.convert(result, Pod)
    spec = result["spec"]
    declared = [claim["name"] for claim in spec.get("resourceClaims", [])]
    used = [
        claim["name"]
        for each in spec.get("initContainers", []) + spec["containers"]
        for claim in each.get("resources", {}).get("claims", [])
    ]
    assert len(declared) == len(set(declared))
    assert set(declared) == set(used)
    templates = {claim["resourceClaimTemplateName"] for claim in spec.get("resourceClaims", [])}
    assert templates == {template.name for template in reviewed.decision.templates}
    # The controller can make each of them.
    recipes = result["metadata"].get("annotations", {}).get("gpuslice.io/claim-templates", "")
    assert templates == set(templates_in(recipes))


@given(pods(), st.sampled_from(["dra", "extended"]))
@settings(max_examples=200, deadline=None)
def test_no_gpu_is_left_where_castslice_was_asked(asked: Object, backend: str) -> None:
    asked["metadata"]["annotations"]["castops.io/optimize"] = "true"
    reviewed = admit(asked, Context(backend=Backend(backend)))
    if reviewed.decision.denial is not None:
        return
    spec = patched(asked, reviewed)["spec"]
    for each in spec.get("initContainers", []) + spec["containers"]:
        for part in ("limits", "requests"):
            assert each.get("resources", {}).get(part, {}).get("nvidia.com/gpu", 0) == 0


@given(
    st.lists(st.dictionaries(st.sampled_from(["cpu", "memory", "example.com/nic"]), quantities), min_size=1), policies
)
@settings(max_examples=100, deadline=None)
def test_a_pod_that_asks_for_no_gpu_is_untouched(asked: list[Object], context: Context) -> None:
    made = pod(*(container(f"c{index}", each) for index, each in enumerate(asked)))
    reviewed = admit(made, context)
    assert reviewed.decision.outcome is Outcome.UNTOUCHED
    assert set(response_of(reviewed)) == {"uid", "allowed"}


def answered(body: bytes) -> bool:
    """Whether there was an answer; a review error is the only alternative."""
    try:
        answer = json.loads(review(body, Context()))
    except ReviewError:
        return False
    assert isinstance(answer["response"]["allowed"], bool)
    return True


@given(st.binary(max_size=200))
def test_any_bytes_have_an_answer_or_a_review_error(body: bytes) -> None:
    assert not answered(body)


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)
FIELDS = ["metadata", "spec", "containers", "initContainers", "resources", "limits", "annotations", "resourceClaims"]


@given(st.recursive(values, lambda inner: st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4), max_leaves=6))
@settings(max_examples=300, deadline=None)
def test_any_object_has_an_answer(object_: object) -> None:
    assert answered(review_of({}, object=object_))


@given(pods(), st.data())
@settings(max_examples=200, deadline=None)
def test_a_review_with_a_byte_changed_has_an_answer_or_a_review_error(asked: Object, data: st.DataObject) -> None:
    body = bytearray(review_of(asked))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    answered(bytes(body))


@pytest.mark.parametrize("nested", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000])
def test_deep_nesting_has_an_answer_or_a_review_error(nested: bytes) -> None:
    answered(nested)
    answered(review_of({}).replace(b'"object": {}', b'"object": ' + nested))
    answered(review_of({}).replace(b'"object": {}', b'"object": {"spec": {"volumes": ' + nested + b"}}"))


@pytest.mark.parametrize(
    "annotations_",
    [
        {},
        {"gpu-fraction": "0.5", "gpu-fraction-container-name": "c9999"},
        {"gpuslice.io/fraction": "1/2", "gpuslice.io/containers": ",".join(f"c{index}" for index in range(10_000))},
        {"gpuslice.io/fraction": "1/2", "gpuslice.io/containers": "nobody"},
    ],
)
def test_ten_thousand_containers_are_read_once_each(annotations_: dict[str, str]) -> None:
    asks = {} if annotations_ else {"nvidia.com/gpu": 1}
    made = pod(*(container(f"c{index}", asks) for index in range(10_000)), annotations=annotations_)
    context = under({"participation": "OptIn", "backend": "extended"})
    reviewed = admit(made, context)
    if reviewed.decision.denial is not None:
        assert len(response_of(reviewed)["status"]["message"]) < 3000
        return
    once = patched(made, reviewed)
    assert patched(once, admit(once, context)) == once


@pytest.mark.parametrize(
    "made",
    [
        pod(container(limits={"nvidia.com/mig-1g.5gb": "1Ei"})),
        pod(container(limits={"tencent.com/vcuda-core": "100000000000"})),
        pod(container(), annotations={"gpu-memory": "1", "gpu-fraction-num-devices": "999999999"}),
        pod(*(container(f"c{index}", {"nvidia.com/mig-1g.5gb": 32}) for index in range(1000))),
    ],
)
def test_a_few_bytes_never_become_a_large_patch(made: Object) -> None:
    reviewed = admit(made)
    assert reviewed.decision.denial is not None
    assert "at most" in reviewed.decision.denial.message or "more than" in reviewed.decision.denial.message


def test_a_pod_of_three_mebibytes_is_read() -> None:
    made = pod(
        container(limits={"gpuslice.io/memory": "1Gi"}, env=[{"name": "BIG", "value": "x" * (3 * 2**20)}]),
        annotations={"note": "y" * 200_000},
    )
    assert admit(made).decision.outcome is Outcome.REWRITTEN


def test_annotations_that_a_user_forged_do_not_get_a_pod_past_admission() -> None:
    forged = {"gpuslice.io/slice": "main: whole GPU", "gpuslice.io/dialect": "native", "gpuslice.io/policy": "x/y"}
    made = pod(container(limits={"gpuslice.io/memory": "1Gi"}), annotations=forged)
    result = patched(made, admit(made))
    assert result["metadata"]["annotations"]["gpuslice.io/slice"] == "main: 1Gi memory"
    assert result["metadata"]["annotations"]["gpuslice.io/policy"] == "none"


def test_a_container_that_another_webhook_adds_is_served_on_the_next_call() -> None:
    made = pod(container("a", {"gpuslice.io/memory": "1Gi"}))
    once = patched(made, admit(made))
    once["spec"]["containers"].append(container("b", {"nvidia.com/gpumem": 100}))
    twice = patched(once, admit(once))
    assert [claim["name"] for claim in twice["spec"]["resourceClaims"]] == ["gpuslice-0", "gpuslice-1"]
    annotations_ = twice["metadata"]["annotations"]
    assert annotations_["gpuslice.io/slice"] == "a: 1Gi memory; b: 100Mi memory"
    assert annotations_["gpuslice.io/dialect"] == "hami, native"


@pytest.mark.parametrize("annotations", [{"gpuslice.io/fraction": "1/2"}, {"gpu-fraction": "0.5"}])
@pytest.mark.parametrize("injected", [None, {"nvidia.com/gpumem": 100}, {"gpuslice.io/memory": "1Gi"}])
def test_what_the_first_container_was_given_is_not_given_to_one_that_is_put_before_it(
    annotations: Object, injected: Object | None
) -> None:
    made = pod(container("main"), container("other"), annotations=annotations)
    once = patched(made, admit(made))
    once["spec"]["containers"].insert(0, container("sidecar", injected))
    twice = patched(once, admit(once))
    with_claims = {each["name"] for each in twice["spec"]["containers"] if each.get("resources", {}).get("claims")}
    assert with_claims == ({"main", "sidecar"} if injected else {"main"})
    assert "main: 1/2 of the memory" in twice["metadata"]["annotations"]["gpuslice.io/slice"]
    assert patched(twice, admit(twice)) == twice


def test_nothing_is_remembered_between_reviews() -> None:
    body = review_of(pod(container(limits={"gpuslice.io/memory": "1Gi"})))
    assert examine(body, Context()).body == examine(body, Context()).body
