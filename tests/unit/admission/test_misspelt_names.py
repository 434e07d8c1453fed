"""Annotations and labels of ours that do not exist."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import msgspec
import pytest

from gpuslice.admission.context import Context
from gpuslice.admission.registration import match_conditions
from gpuslice.dialects import registry
from gpuslice.dialects.known import castslice
from gpuslice.model.pods import Pod
from gpuslice.model.settings import DEFAULT_SETTINGS
from gpuslice.policies.expressions import Expression
from tests.unit.admission.making import Object, admit, container, denied, pod, response_of, under

WHOLE = {"nvidia.com/gpu": "1"}
MAY_ASK = Expression(match_conditions.may_ask(DEFAULT_SETTINGS))
SLICE = {"gpuslice.io/memory": "4Gi"}


def labelled(asked: Object, **labels: str) -> Object:
    return asked | {"metadata": asked["metadata"] | {"labels": labels}}


@pytest.mark.parametrize("limits", [None, WHOLE])
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpuslice.io/fracton", "you meant gpuslice.io/fraction"),
        ("gpuslice.io/Fraction", "you meant gpuslice.io/fraction"),
        ("gpuslice.io/mem", ("you meant gpuslice.io/memory, which is a resource: write it into resources.limits of the "
         "container")),
    ],
)  # fmt: skip
def test_a_pod_that_would_run_without_its_slice_is_refused(limits: Object | None, name: str, meant: str) -> None:
    assert denied(pod(container(limits=limits), annotations={name: "0.5"})) == (
        f"metadata.annotations[{name}]: there is no such name, and the pod would run without its slice; {meant}"
    )


def test_a_label_that_should_be_an_annotation_is_refused() -> None:
    assert denied(labelled(pod(container()), **{"gpuslice.io/fraction": "0.5"})) == (
        "metadata.labels[gpuslice.io/fraction]: there is no such name, and the pod would run without its slice; "
        "you meant the annotation gpuslice.io/fraction"
    )


@pytest.mark.parametrize(
    ("limits", "annotations", "meant"),
    [
        (SLICE, {"gpuslice.io/gpu_model": "A100-40GB"}, "you meant gpuslice.io/gpu-model"),
        (SLICE, {"gpuslice.io/fracton": "0.5"}, "you meant gpuslice.io/fraction"),
        (WHOLE, {"castops.io/optimise": "true"}, "you meant castops.io/optimize"),
        (WHOLE, {"castops.io/optimize": "true", "castops.io/slice_ratio": "2"}, "you meant castops.io/slice-ratio"),
        (
            SLICE,
            {"gpuslice.io/zzzz": "x"},
            (
                "there are the annotations gpuslice.io/containers, gpuslice.io/fraction, gpuslice.io/gpu-model, "
                "gpuslice.io/sharing"
            ),
        ),
        (None, {"gpuslice.io/sharin": "pod"}, "you meant gpuslice.io/sharing"),
    ],
)
def test_what_changes_nothing_is_told(limits: Object | None, annotations: dict[str, str], meant: str) -> None:
    response = response_of(admit(pod(container(limits=limits), annotations=annotations)))
    assert response["allowed"]
    name = list(annotations)[-1]
    assert response["warnings"] == [
        f"gpuslice: metadata.annotations[{name}]: there is no such name, and it changes nothing; {meant}"
    ]


def test_what_admission_writes_and_other_domains_are_not_told() -> None:
    first = admit(pod(container(limits=SLICE)))
    assert "warnings" not in response_of(first)
    others = {"example.com/fracton": "1", "fraction.gpuslice.io/x": "1", "gpuslice.io/slice": "mine"}
    labels = {"example.com/fracton": "1", "gpuslice.io/sliced": "true"}
    assert "warnings" not in response_of(admit(labelled(pod(container(), annotations=others), **labels)))


def test_an_annotation_that_the_operator_renamed_is_known_by_its_new_name() -> None:
    settings = replace(DEFAULT_SETTINGS, dialects=MappingProxyType({castslice.OPTIMIZE.setting: "castops.io/slice-it"}))
    asked = pod(container(limits=WHOLE), annotations={"castops.io/slice-it": "true"})
    assert "warnings" not in response_of(admit(asked, Context(settings=settings)))


def test_a_pod_that_says_the_same_without_the_slip_is_answered_by_itself() -> None:
    """An answer from memory is for pods with the same names alone."""
    context = Context()
    wrong = pod(container(limits=WHOLE), annotations={"gpuslice.io/fracton": "0.5"})
    right = pod(container(limits=WHOLE), annotations={"example.com/x": "0.5"})
    for _ in range(2):
        assert denied(wrong, context)
        assert response_of(admit(right, context))["allowed"]


def test_of_many_slips_few_are_told_and_of_very_many_names_none_is_searched() -> None:
    many = {f"gpuslice.io/zzzz{number}": "x" for number in range(registry.MOST_SEARCHED)}
    assert len(response_of(admit(pod(container(limits=SLICE), annotations=many)))["warnings"]) == 3
    more = pod(container(limits=SLICE), annotations=many | {"example.com/x": "x"})
    assert "warnings" not in response_of(admit(more))


@pytest.mark.parametrize("count", [1, registry.MOST_SEARCHED, registry.MOST_SEARCHED + 1])
@pytest.mark.parametrize("kind", ["annotations", "labels"])
@pytest.mark.parametrize("name", ["gpuslice.io/fracton", "gpuslice.io/sliced", "castops.io/optimise"])
def test_the_api_server_asks_about_the_pods_that_are_told(name: str, kind: str, count: int) -> None:
    asked = pod(container())
    asked["metadata"][kind] = {name: "x"} | {f"example.com/{number}": "x" for number in range(count - 1)}
    sent = name == "gpuslice.io/fracton" and count <= registry.MOST_SEARCHED
    assert registry.may_ask(msgspec.convert(asked, Pod), DEFAULT_SETTINGS) is sent
    assert MAY_ASK.holds({"object": asked}) is sent


@pytest.mark.parametrize("part", ["limits", "requests"])
@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu", "gpuslice.io/memory", "nvidia.com/mig-1g.5gb", "volcano.sh/vgpu-number"]
)
def test_a_gpu_for_the_pod_as_a_whole_is_refused(name: str, part: str) -> None:
    asked = pod(container(), resources={part: {"cpu": "1", name: "1"}})
    assert denied(asked) == (
        f"spec.resources.{part}[{name}]: a pod as a whole has cpu and memory, and no GPU; write it into "
        "resources.limits of the container that needs it"
    )
    assert MAY_ASK.holds({"object": asked})


def test_cpu_of_the_pod_as_a_whole_stays_beside_a_slice() -> None:
    asked = pod(container(limits=SLICE), resources={"limits": {"cpu": "1", "memory": "1Gi"}})
    assert response_of(admit(asked))["allowed"]
    assert not registry.may_ask(
        msgspec.convert(pod(container(), resources={"limits": {"cpu": "1"}}), Pod), DEFAULT_SETTINGS
    )


def test_a_policy_that_only_warns_lets_such_pods_pass() -> None:
    response = response_of(admit(pod(container(), annotations={"gpuslice.io/fracton": "1"}), under({"warnOnly": True})))
    assert response["allowed"]
    assert "would be denied" in response["warnings"][0]
