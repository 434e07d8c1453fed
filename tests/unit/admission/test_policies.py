"""Which rule decides, and what it does to a pod."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.admission.context import Context
from gpuslice.admission.decision import Outcome
from gpuslice.model.policies import NO_RULE, Match, Rule
from gpuslice.model.selectors import LabelSelector, Operator, Requirement
from gpuslice.policies.rule_set import PolicySet
from gpuslice.policies.subject import Subject
from tests.unit.admission.making import Object, admit, admitted, container, denied, pod, response_of, under

GPU = pod(container(limits={"nvidia.com/gpu": 1}))
MEMORY = pod(container(limits={"gpuslice.io/memory": "4Gi"}))


def rule(name: str, *, priority: int = 0, position: int = 0, **match: Any) -> Rule:  # noqa: ANN401 - fields of Match
    return Rule(policy=name, name="r", priority=priority, position=position, match=Match(**match))


def has(key: str, *values: str) -> LabelSelector:
    return LabelSelector((Requirement(key, Operator.IN, frozenset(values)),))


TEAM = Subject(
    namespace="team",
    namespace_labels={"tier": "research"},
    pod_labels={"app": "train"},
    service_account="runner",
    document=b'{"metadata": {"labels": {"app": "train"}}}',
)


def test_the_higher_priority_comes_first() -> None:
    rules = [rule("a", namespaces=frozenset(["team"])), rule("b", priority=1)]
    assert PolicySet(rules).choose(TEAM).rule.policy == "b"


def test_among_equals_the_more_specific_comes_first() -> None:
    ladder = [
        rule("f"),
        rule("e", expression='object.metadata.labels.app == "train"'),
        rule("d", pod_labels=has("app", "train")),
        rule("c", namespace_labels=has("tier", "research")),
        rule("b", service_accounts=frozenset(["team/runner"])),
        rule("a", namespaces=frozenset(["team"])),
    ]
    while ladder:
        assert PolicySet(ladder).choose(TEAM).rule.policy == ladder[-1].policy
        ladder.pop()


def test_then_the_name() -> None:
    assert PolicySet([rule("b"), rule("a"), rule("c")]).choose(TEAM).rule.policy == "a"


def test_a_policy_speaks_with_its_first_rule_that_matches_however_specific_the_others_are() -> None:
    rules = [
        Rule(policy="p", name="wide", position=0, match=Match(pod_labels=has("app", "train"))),
        Rule(policy="p", name="narrow", position=1, match=Match(namespaces=frozenset(["team"]))),
    ]
    assert PolicySet(rules).choose(TEAM).rule.name == "wide"


def test_without_a_rule_nothing_changes() -> None:
    assert PolicySet([rule("a", namespaces=frozenset(["other"]))]).choose(TEAM).rule is NO_RULE


def test_an_expression_without_an_answer_does_not_match_and_is_told() -> None:
    rules = [rule("broken", priority=9, expression="object.spec.nothing == 1"), rule("fine")]
    choice = PolicySet(rules).choose(TEAM)
    assert choice.rule.policy == "fine"
    (failure,) = choice.failures
    assert failure.rule.policy == "broken"
    assert "has no answer" in failure.reason


_labels = st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), max_size=2)
_requirements = st.builds(
    Requirement,
    st.sampled_from(["a", "b"]),
    st.sampled_from([Operator.IN, Operator.NOT_IN]),
    st.frozensets(st.sampled_from(["x", "y"]), min_size=1),
) | st.builds(Requirement, st.sampled_from(["a", "b"]), st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST]))
_selectors = st.builds(LabelSelector, st.lists(_requirements, max_size=2).map(tuple))
_matches = st.builds(
    Match,
    namespaces=st.frozensets(st.sampled_from(["team", "other"]), max_size=1),
    service_accounts=st.frozensets(st.sampled_from(["default", "team/default", "other/default"]), max_size=1),
    namespace_labels=_selectors,
    pod_labels=_selectors,
)
_rules = st.lists(
    st.builds(Rule, policy=st.sampled_from("pqr"), name=st.just("r"), priority=st.just(0), match=_matches),
    max_size=8,
)


@given(_rules, _labels, _labels)
def test_the_index_finds_what_looking_at_every_rule_finds(
    rules: list[Rule], namespace_labels: dict[str, str], pod_labels: dict[str, str]
) -> None:
    policies = PolicySet(rules)
    subject = Subject(namespace="team", namespace_labels=namespace_labels, pod_labels=pod_labels)
    spoken: dict[str, Rule] = {}
    for verdict in policies.verdicts(subject):
        if verdict.matched:
            spoken.setdefault(verdict.rule.policy, verdict.rule)
    expected = sorted(spoken.values(), key=lambda each: (tuple(-x for x in each.match.specificity), each.policy))
    chosen = policies.choose(subject).rule
    assert chosen == (expected[0] if expected else NO_RULE)


def test_a_namespace_can_be_opted_in_and_needs_no_annotation() -> None:
    assert admit(GPU).decision.outcome is Outcome.UNTOUCHED
    context = under({"match": {"namespaces": ["team"]}, "participation": "OptIn"})
    limits = admitted(GPU, context)["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu-shared": "1"}


def test_a_namespace_can_be_opted_out() -> None:
    reviewed = admit(MEMORY, under({"participation": "OptOut"}))
    assert set(response_of(reviewed)) == {"uid", "allowed"}


def test_dialects_that_are_not_allowed_are_denied() -> None:
    message = denied(MEMORY, under({"dialects": ["hami", "kai"]}))
    assert "native is not allowed here; ask in hami or kai (policy test/rule-0)" in message


def test_presets_defaults_and_target_resource_are_the_policy_s() -> None:
    annotations = {"castops.io/optimize": "true"}
    context = under({"presets": {"huge": 8}, "defaultSlots": 3, "targetResource": "nvidia.com/slots"})
    plain = pod(container(limits={"nvidia.com/gpu": 1}), annotations=annotations)
    huge = pod(container(limits={"nvidia.com/gpu": 1}), annotations=annotations | {"castops.io/workload-type": "huge"})
    for asked, slots in ((plain, "3"), (huge, "8")):
        limits = admitted(asked, context)["spec"]["containers"][0]["resources"]["limits"]
        assert limits == {"nvidia.com/slots": slots}


def test_defaults_fill_in_what_a_request_does_not_say() -> None:
    context = under({"defaults": {"memory": "2Gi", "cores": 15}})
    described = {
        name: admitted(asked, context)["metadata"]["annotations"]["gpuslice.io/slice"]
        for name, asked in {
            "memory": MEMORY,
            "cores": pod(container(limits={"gpuslice.io/cores": 40})),
        }.items()
    }
    assert described == {"memory": "main: 4Gi memory, 15% cores", "cores": "main: 2Gi memory, 40% cores"}


@pytest.mark.parametrize(
    ("maximum", "asked", "reason"),
    [
        ({"memory": "3Gi"}, MEMORY, "asks for 4Gi of GPU memory; at most 3Gi is allowed"),
        ({"cores": 50}, MEMORY, "asks for no cores, which would be unlimited"),
        ({"cores": 50}, pod(container(limits={"gpuslice.io/cores": 60})), "asks for 60% of a GPU's cores"),
        ({"cores": 50}, pod(container(limits={"nvidia.com/mig-4g.20gb": 1})), "asks for 57% of a GPU's cores"),
        ({"memory": "8Gi"}, pod(container(limits={"nvidia.com/mig-2g.10gb": 1})), "asks for 9856Mi of GPU memory"),
        ({"devices": 1}, pod(container(limits={"tencent.com/vcuda-core": 200})), "asks for 2 devices"),
        (
            {"slots": 2},
            pod(
                container(limits={"nvidia.com/gpu": 1}),
                annotations={"castops.io/optimize": "true", "castops.io/slice-ratio": "3"},
            ),
            "asks for 3 slots; at most 2 are allowed",
        ),
        ({"memory": "1Gi"}, pod(container(), annotations={"gpu-fraction": "0.5"}), "asks for 1/2 of the memory"),
        ({"memory": "1Gi"}, pod(container(limits={"tencent.com/vcuda-core": 100})), "asks for all memory"),
    ],
)
def test_no_container_gets_more_than_the_maximum(maximum: Object, asked: Object, reason: str) -> None:
    message = denied(asked, under({"maximum": maximum}))
    assert reason in message
    assert "(policy test/rule-0)" in message


def test_a_fraction_goes_only_to_gpus_where_it_is_within_the_maximum() -> None:
    sizes = (16 * 2**30, 80 * 2**30)
    context = under({"maximum": {"memory": "10Gi"}}, gpu_sizes=sizes)
    asked = pod(container(), annotations={"gpu-fraction": "0.5"})
    (template,) = admit(asked, context).decision.templates
    (request,) = template.document("team")["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"memory": "8Gi"}
    denied(asked, under({"maximum": {"memory": "10Gi"}, "backend": "extended"}, gpu_sizes=sizes))


def test_the_model_is_the_policy_s_and_another_is_denied() -> None:
    context = under({"gpuModel": "l4"})
    (template,) = admit(MEMORY, context).decision.templates
    assert b'model == \\"L4\\"' in template.spec
    other = pod(container(limits={"gpuslice.io/memory": "4Gi"}), annotations={"gpuslice.io/gpu-model": "T4"})
    assert "asks for a T4, but these pods get an L4" in denied(other, context)


def test_tolerations_and_node_selectors_are_added_where_they_are_missing() -> None:
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    context = under({"tolerations": [toleration], "nodeSelector": {"pool": "gpu", "zone": "a"}})
    spec = admitted(MEMORY, context)["spec"]
    assert spec["tolerations"] == [toleration]
    assert spec["nodeSelector"] == {"pool": "gpu", "zone": "a"}
    other = {"key": "other", "operator": "Exists"}
    asked = pod(
        container(limits={"gpuslice.io/memory": "4Gi"}),
        tolerations=[other, toleration],
        nodeSelector={"zone": "b"},
    )
    spec = admitted(asked, context)["spec"]
    assert spec["tolerations"] == [other, toleration]
    assert spec["nodeSelector"] == {"zone": "b", "pool": "gpu"}


PLACED = {"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"pool": "gpu"}}


@pytest.mark.parametrize(
    "asked",
    [
        pod(container(limits={"nvidia.com/gpu": 1})),
        pod(container(), container("other", {"nvidia.com/gpu.unheard-of": 1})),
        pod(container(limits={"nvidia.com/gpu-shared": 2})),
        pod(container(limits={"deviceclass.resource.kubernetes.io/gpu.gpuslice.io": 1})),
        pod(
            container(resources={"claims": [{"name": "gpuslice-0"}]}),
            resourceClaims=[
                {"name": "gpuslice-0", "resourceClaimTemplateName": "gpuslice-1x1024mi-0c-0123456789abcdef"}
            ],
        ),
    ],
)
def test_every_gpu_pod_is_placed_as_its_rule_says(asked: Object) -> None:
    context = under(PLACED)
    once = admitted(asked, context)
    assert once["spec"] == asked["spec"] | PLACED
    assert once["metadata"] == asked["metadata"]
    assert admit(once, context).decision.outcome is Outcome.UNTOUCHED


def test_a_pod_that_an_earlier_rule_served_is_placed_by_the_rule_that_chooses_it_now() -> None:
    once = admitted(pod(container(limits={"gpuslice.io/memory": "1Gi"})))
    twice = admitted(once, under(PLACED))
    assert twice["spec"] == once["spec"] | PLACED
    assert admitted(twice, under(PLACED)) == twice


@pytest.mark.parametrize(
    "asked",
    [
        pod(container(limits={"nvidia.com/gpu": 0})),
        pod(container(limits={"nvidia.com/priority": 1})),
        pod(container(limits={"nvidia.com/hostdev": 1})),
    ],
)
def test_a_pod_without_a_gpu_is_not_placed(asked: Object) -> None:
    assert admit(asked, under(PLACED)).decision.outcome is Outcome.UNTOUCHED


def test_a_rule_that_leaves_pods_alone_or_only_warns_places_none() -> None:
    asked = pod(container(limits={"nvidia.com/gpu": 1}))
    assert admit(asked, under(PLACED | {"participation": "OptOut"})).decision.outcome is Outcome.UNTOUCHED
    warned = admit(asked, under(PLACED | {"warnOnly": True})).decision
    assert warned.outcome is Outcome.WARNED
    assert "would be rewritten, because its policy says how it is placed" in warned.warnings[0]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (MEMORY, "this pod would be rewritten (dra) for main: 4Gi memory"),
        (pod(container(limits={"gpuslice.io/memory": "9Gi"})), "this pod would be denied: spec.containers[0]"),
        (pod(container(limits={"gpuslice.io/memory": "-1"})), "this pod would be denied: spec.containers[0]"),
    ],
)
def test_a_rule_that_only_warns_lets_pods_pass_and_says_what_would_have_happened(asked: Object, told: str) -> None:
    reviewed = admit(asked, under({"warnOnly": True, "maximum": {"memory": "8Gi"}}))
    response = response_of(reviewed)
    assert response["allowed"]
    assert "patch" not in response
    assert reviewed.decision.templates == ()
    assert told in response["warnings"][0]
    assert "policy test/rule-0 only warns" in response["warnings"][0]


def test_rules_see_the_labels_of_the_namespace() -> None:
    rule = {"match": {"namespaceSelector": {"matchLabels": {"tier": "research"}}}, "participation": "OptOut"}
    labels = {"team": {"tier": "research"}}
    context = under(rule, namespace_labels=lambda name: labels.get(name, {}))
    assert admit(MEMORY, context).decision.outcome is Outcome.UNTOUCHED
    assert admit(MEMORY, under(rule)).decision.outcome is Outcome.REWRITTEN


def test_rules_see_the_user() -> None:
    rule = {"match": {"expression": '"admins" in request.userInfo.groups'}, "participation": "OptOut"}
    user = {"username": "ada", "groups": ["admins"], "extra": {"a": ["b"]}}
    assert admit(MEMORY, under(rule), userInfo=user).decision.outcome is Outcome.UNTOUCHED
    assert admit(MEMORY, under(rule)).decision.outcome is Outcome.REWRITTEN


def test_a_context_without_policies_is_the_default() -> None:
    assert Context().policies.rules == ()
