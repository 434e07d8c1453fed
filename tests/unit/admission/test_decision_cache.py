"""An answer from memory is the answer that would have been worked out, and memory is bounded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given

from gpuslice.admission.context import Context
from gpuslice.admission.deciding import decide
from gpuslice.admission.decision import Outcome
from gpuslice.admission.decision_cache import DecisionCache, cache_key
from gpuslice.admission.review import examine
from gpuslice.model.pods import Pod
from gpuslice.model.policies import NO_RULE
from gpuslice.policies.subject import Subject
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
    assert first.decision.templates == second.decision.templates == fresh.decision.templates
    assert first.decision.outcome == second.decision.outcome == fresh.decision.outcome


def test_the_pods_of_a_workload_are_worked_out_once() -> None:
    context = Context()
    answers = [admit(named(name), context, uid=name) for name in ("a", "b", "c")]
    assert len(context.answers) == 1
    assert len({id(answer.decision) for answer in answers}) == 1
    assert [answer.uid for answer in answers] == ["a", "b", "c"]


def test_annotations_that_no_dialect_reads_do_not_matter_and_stay() -> None:
    context = Context()
    for index in range(5):
        said = {"batch.kubernetes.io/job-completion-index": f"{index}", f"example.com/{index}": "mine"}
        indexed = named("job", **said)
        assert said.items() <= patched(indexed, admit(indexed, context))["metadata"]["annotations"].items()
    assert len(context.answers) == 1


class _Recording(dict[str, str]):
    """The annotations of a pod, and which of them were looked for."""

    def __init__(self, said: dict[str, str]) -> None:
        super().__init__(said)
        self.looked_for: set[object] = set()

    def __contains__(self, name: object) -> bool:
        self.looked_for.add(name)
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self.looked_for.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - as the method of dict
        self.looked_for.add(name)
        return super().get(name, default)


@given(pods(), policies)
def test_every_annotation_that_deciding_looks_for_tells_pods_apart(asked: Object, context: Context) -> None:
    decoded = msgspec.convert(asked, Pod)
    metadata = decoded.metadata
    assert metadata is not None
    said = _Recording(metadata.annotations or {})
    recorded = msgspec.structs.replace(decoded, metadata=msgspec.structs.replace(metadata, annotations=said))
    decide(recorded, Subject(namespace="team"), context)
    for name in said.looked_for:
        assert isinstance(name, str)
        other = msgspec.structs.replace(metadata, annotations=dict(said) | {name: "another"})
        same = msgspec.structs.replace(metadata, annotations=dict(said) | {name: "one"})
        keys = [
            cache_key(msgspec.structs.replace(decoded, metadata=each), NO_RULE, context.settings)
            for each in (other, same)
        ]
        assert keys[0] != keys[1], name


def test_the_first_annotation_is_written_where_there_was_none() -> None:
    context = Context()
    without, with_one = pod(HAMI), pod(HAMI, annotations={"team": "vision"})
    for asked in (with_one, without, with_one):
        assert "gpuslice.io/slice" in patched(asked, admit(asked, context))["metadata"]["annotations"]


def test_the_label_is_written_whatever_labels_there_were() -> None:
    context = Context()
    without, labelled, written, lying = (pod(HAMI) for _ in range(4))
    labelled["metadata"]["labels"] = {"app": "training"}
    written["metadata"]["labels"] = {"app": "training", "gpuslice.io/sliced": "true"}
    lying["metadata"]["labels"] = {"gpuslice.io/sliced": "no"}
    for asked in (labelled, without, written, lying, labelled, written):
        labels = patched(asked, admit(asked, context))["metadata"]["labels"]
        assert labels == asked["metadata"].get("labels", {}) | {"gpuslice.io/sliced": "true"}


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


def test_a_large_pod_is_not_remembered() -> None:
    context = Context()
    admit(pod(HAMI, nodeSelector={"example.com/note": "x" * 10_000}), context)
    assert len(context.answers) == 0


def test_a_short_pod_that_asks_for_very_much_is_not_remembered() -> None:
    partitions = {f"nvidia.com/mig-{memory}": 32 for memory in ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")}
    many = [container(f"c{number}", {"nvidia.com/gpumem": 1}) for number in range(20)]
    context, strict = Context(), under({"maximum": {"memory": "1Ki"}})
    assert admit(pod(container(limits=partitions)), context).decision.outcome is Outcome.REWRITTEN
    assert admit(pod(*many), strict).decision.outcome is Outcome.DENIED
    assert len(context.answers) == len(strict.answers) == 0


def test_what_is_asked_for_stays_and_the_rest_is_forgotten() -> None:
    kept: DecisionCache[str] = DecisionCache()
    kept.put("asked for", "value")
    for number in range(10_000):
        kept.put(number, "value")
        assert kept.get("asked for") == "value"
    assert len(kept) <= 2048
    assert kept.get(0) is None
