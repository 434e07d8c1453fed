"""An answer from memory is the answer that would have been worked out, and memory is bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given

from gpuslice.admission.context import Context
from gpuslice.admission.decisions import Outcome
from gpuslice.admission.remembering import Recent
from gpuslice.admission.review import examine
from tests.unit.admission.making import admit, container, patched, pod, review_of, under
from tests.unit.admission.test_properties import pods, policies

if TYPE_CHECKING:
    from tests.unit.admission.making import Object

HAMI = container(limits={"nvidia.com/gpumem": 1000})


def named(name: str, **annotations: str) -> Object:
    made = pod(HAMI, annotations={"team": "vision"} | annotations)
    made["metadata"] |= {"name": name, "labels": {"pod": name}}
    return made


@given(pods(), policies)
def test_the_second_answer_is_the_first_and_what_a_fresh_server_says(asked: Object, context: Context) -> None:
    body = review_of(asked)
    first, second, fresh = examine(body, context), examine(body, context), examine(body, replace(context))
    assert first.body == second.body == fresh.body
    assert first.templates == second.templates == fresh.templates
    assert first.decision.outcome == second.decision.outcome == fresh.decision.outcome


def test_the_pods_of_a_workload_are_worked_out_once() -> None:
    context = Context()
    answers = [admit(named(name), context, uid=name) for name in ("a", "b", "c")]
    assert len(context.answers) == 1
    assert len({id(answer.decision) for answer in answers}) == 1
    assert [answer.uid for answer in answers] == ["a", "b", "c"]


def test_what_tells_the_pods_of_an_indexed_job_apart_does_not_matter() -> None:
    context = Context()
    for index in range(5):
        indexed = named("job", **{"batch.kubernetes.io/job-completion-index": f"{index}"})
        kept = patched(indexed, admit(indexed, context))["metadata"]["annotations"]
        assert kept["batch.kubernetes.io/job-completion-index"] == f"{index}"
    assert len(context.answers) == 1


def test_the_first_annotation_is_written_where_there_was_none() -> None:
    context = Context()
    without, with_one = pod(HAMI), pod(HAMI, annotations={"team": "vision"})
    for asked in (with_one, without, with_one):
        assert "gpuslice.io/slice" in patched(asked, admit(asked, context))["metadata"]["annotations"]


def test_a_namespace_that_changes_its_labels_changes_the_answer() -> None:
    labels = {"tier": "research"}
    context = under(
        {"match": {"namespaceSelector": {"matchLabels": {"tier": "production"}}}, "participation": "OptOut"},
        namespace_labels=lambda _name: labels,
    )
    assert admit(named("a"), context).decision.outcome is Outcome.REWRITTEN
    labels["tier"] = "production"
    assert admit(named("a"), context).decision.outcome is Outcome.UNTOUCHED


def test_two_rules_of_one_policy_are_told_apart() -> None:
    context = under(
        {"match": {"namespaces": ["one"]}, "maximum": {"memory": "1Mi"}},
        {"match": {"namespaces": ["two"]}},
    )
    assert admit(named("a"), context, namespace="one").decision.outcome is Outcome.DENIED
    assert admit(named("a"), context, namespace="two").decision.outcome is Outcome.REWRITTEN


def test_a_context_made_from_another_remembers_nothing() -> None:
    context = Context()
    admit(named("a"), context)
    assert len(replace(context, serves_dra=False).answers) == 0


def test_an_expression_that_has_no_answer_is_told_of_each_time() -> None:
    context = under({"match": {"expression": "object.metadata.labels.missing == 'x'"}})
    for name in ("a", "b"):
        assert len(admit(named(name), context).decision.failures) == 1


def test_a_dry_run_has_nothing_to_make_even_if_a_real_one_had() -> None:
    context = Context()
    assert admit(named("a"), context).templates
    assert not admit(named("a"), context, dryRun=True).templates
    assert admit(named("a"), context).templates


def test_a_large_pod_is_not_remembered() -> None:
    context = Context()
    admit(pod(HAMI, annotations={"note": "x" * 10_000}), context)
    assert len(context.answers) == 0


def test_what_is_asked_for_stays_and_the_rest_is_forgotten() -> None:
    recent: Recent[str] = Recent()
    recent.put("asked for", "value")
    for number in range(10_000):
        recent.put(number, "value")
        assert recent.get("asked for") == "value"
    assert len(recent) <= 2048
    assert recent.get(0) is None
