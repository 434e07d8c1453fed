"""A pod that differs from one before in the names of its containers gets what it would get without the other."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.admission import answer_forms
from gpuslice.admission.context import Context
from tests.unit.admission.making import Object, admit, container, patched, pod, under
from tests.unit.admission.test_properties import pods, policies

#: Some of them are words of the patch itself, or of one another, or no names at all.
NAMES = (
    "main",
    "a",
    "add",
    "op",
    "memory",
    "gpu",
    "slice",
    "dra",
    "true",
    "worker-1",
    "worker-10",
    "0",
    "Main",
    'q"',
    "",
)


def renamed(asked: Object, names: list[str]) -> Object:
    other = copy.deepcopy(asked)
    spec = other["spec"]
    for each, name in zip(spec["containers"] + spec.get("initContainers", []), names, strict=False):
        each["name"] = name
    return other


@given(pods(), policies, st.lists(st.lists(st.sampled_from(NAMES), min_size=5, max_size=5), min_size=1, max_size=6))
@settings(max_examples=400, deadline=None)
def test_an_answer_does_not_depend_on_the_pods_before(
    asked: Object, context: Context, all_names: list[list[str]]
) -> None:
    for names in all_names:
        again = renamed(asked, names)
        fresh = Context(
            settings=context.settings,
            policies=context.policies,
            backend=context.backend,
            gpu_sizes=context.gpu_sizes,
            serves_dra=context.serves_dra,
        )
        assert admit(again, context).body == admit(again, fresh).body


def asking(*names: str, **more: Any) -> Object:  # noqa: ANN401 - fields of the API
    return pod(*(container(name, {"gpuslice.io/memory": "1Gi"}) for name in names), **more)


def test_the_names_are_filled_into_what_another_pod_left() -> None:
    context = Context()
    admit(asking("first", "second"), context)
    assert (len(context.answers), len(context.forms)) == (1, 1)
    again = asking("third", "fourth")
    found = patched(again, admit(again, context))
    assert (len(context.answers), len(context.forms)) == (2, 1), "it was not decided anew"
    assert found["metadata"]["annotations"]["gpuslice.io/slice"] == "third: 1Gi memory; fourth: 1Gi memory"
    assert found == patched(again, admit(again))


def test_a_name_that_is_part_of_another_is_told_apart() -> None:
    context = Context()
    for names in (("a1", "b2"), ("worker", "worker-2"), ("worker-2", "worker")):
        again = asking(*names)
        assert patched(again, admit(again, context)) == patched(again, admit(again))


@pytest.mark.parametrize("name", ["op", "add", "memory", "path", "value", "gpuslice"])
def test_a_word_of_the_patch_leaves_no_form_and_is_filled_into_one(name: str) -> None:
    context = Context()
    admit(asking(name), context)
    assert len(context.forms) == 0
    admit(asking("distinct"), context)
    assert len(context.forms) == 1
    context.answers._new.clear()
    assert admit(asking(name), context).body == admit(asking(name)).body


@pytest.mark.parametrize(
    "asked",
    [
        pod(
            container("yak"),
            container("zebra"),
            annotations={"gpuslice.io/memory": "1Gi", "gpuslice.io/containers": "zebra"},
        ),
        pod(container("zebra"), annotations={"gpu-fraction": "0.5", "gpu-fraction-container-name": "zebra"}),
        asking("zebra", annotations={"gpuslice.io/slice": "zebra: 1Gi memory"}),
        asking("zebra", "zebra"),
        asking("Not A Name"),
        asking(*(f"zebra-{number}z" for number in range(9))),
        asking("zebra", nodeSelector={"name": "zebra"}),
    ],
    ids=["native", "kai", "ours", "twice", "no name", "many", "a selector"],
)
def test_where_names_may_matter_there_is_no_form(asked: Object) -> None:
    context = Context()
    admit(asked, context)
    assert len(context.forms) == 0


def test_what_is_told_with_a_name_in_it_has_no_form() -> None:
    context = under({"maximum": {"memory": "1Mi"}})
    admit(asking("zebra"), context)
    assert len(context.forms) == 0


def test_a_form_is_of_one_rule() -> None:
    assert answer_forms.without_names(b'{"name":"a"}', [b"a"]) == b'{"name":0}'
    context = under({"match": {"podSelector": {"matchLabels": {"team": "a"}}}, "maximum": {"memory": "1Mi"}})
    assert admit(asking("b"), context).decision.denial is None
    limited = asking("c")
    limited["metadata"]["labels"] = {"team": "a"}
    assert admit(limited, context).decision.denial is not None
