"""In which namespaces the API server refuses pods that no webhook has seen, and how two webhooks divide them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.admission.registration import fail_closed_namespaces, webhook_configurations
from gpuslice.admission.registration.fail_closed_namespaces import NO_NAMESPACE, RefusingNamespaces, refusing_namespaces
from gpuslice.admission.registration.webhook_configurations import Address, Webhooks
from gpuslice.policies.parsing import PolicyError, parse_policy
from gpuslice.policies.rule_set import PolicySet
from gpuslice.policies.subject import Subject
from tests.unit.admission.making import policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.model.policies import Rule

Object = dict[str, Any]

EXCLUDED = ("kube-system", "gpuslice-system")
KNOWN: Mapping[str, Mapping[str, str]] = {"a": {"tier": "x"}, "b": {}, "kube-system": {}}
LIMIT: Object = {"maximum": {"memory": "4Gi"}}


def _rules(*rules: Object, name: str = "limits", **spec: object) -> tuple[Rule, ...]:
    numbered = [{"name": f"rule-{position}"} | rule for position, rule in enumerate(rules)]
    document = policy(*numbered, name=name)
    document["spec"] |= spec
    return parse_policy(document)


def _refusing(*rules: Rule, known: Mapping[str, Mapping[str, str]] = KNOWN) -> RefusingNamespaces:
    return refusing_namespaces(rules, known, EXCLUDED)


@pytest.mark.parametrize(
    "limit",
    [LIMIT, {"maximum": {"devices": 1}}, {"participation": "OptIn"}, {"dialects": ["kai"]}, {"gpuModel": "A100-40GB"}],
)
def test_where_a_rule_limits_anything_unreviewed_pods_are_refused_unless_it_says_otherwise(limit: Object) -> None:
    assert _refusing(*_rules(limit)) == RefusingNamespaces(others=True)
    assert _refusing(*_rules(limit, whenUnreviewed="Refuse")) == RefusingNamespaces(others=True)
    assert _refusing(*_rules(limit, whenUnreviewed="Admit")) == NO_NAMESPACE


def test_where_nothing_is_limited_they_are_admitted_unless_it_says_otherwise() -> None:
    harmless = {"defaults": {"memory": "1Gi"}, "backend": "dra"}

    assert _refusing() == NO_NAMESPACE
    assert _refusing(*_rules(harmless)) == NO_NAMESPACE
    assert _refusing(*_rules(harmless, whenUnreviewed="Refuse")) == RefusingNamespaces(others=True)


@pytest.mark.parametrize("more", [{"warnOnly": True}, {"participation": "OptOut"}])
@pytest.mark.parametrize("spec", [{}, {"whenUnreviewed": "Refuse"}])
def test_pods_that_pass_as_they_are_when_they_are_reviewed_do_so_when_they_are_not(more: Object, spec: Object) -> None:
    assert _refusing(*_rules(LIMIT | more, **spec)) == NO_NAMESPACE


def test_a_word_that_means_nothing_is_refused() -> None:
    with pytest.raises(PolicyError, match="whenUnreviewed"):
        _rules(LIMIT, whenUnreviewed="Perhaps")


def test_a_rule_that_names_namespaces_is_for_these_also_before_they_exist() -> None:
    found = _refusing(*_rules(LIMIT | {"match": {"namespaces": ["a", "later"]}}))

    assert found == RefusingNamespaces(others=False, names=frozenset({"a", "later"}))
    assert "never-named" not in found


def test_a_rule_that_looks_at_labels_is_for_every_namespace_that_may_get_them() -> None:
    found = _refusing(*_rules(LIMIT | {"match": {"namespaceSelector": {"matchLabels": {"tier": "x"}}}}))

    assert found == RefusingNamespaces(others=True, names=frozenset({"b"}))
    assert "new" in found


@pytest.mark.parametrize(
    "match",
    [
        {"podSelector": {"matchLabels": {"limited": "true"}}},
        {"serviceAccounts": ["a/limited"]},
        {"expression": "request.userInfo.username == 'limited'"},
    ],
)
def test_what_a_pod_chooses_itself_frees_it_of_nothing(match: Object) -> None:
    assert _refusing(*_rules(LIMIT | {"match": match})) == RefusingNamespaces(others=True)


def test_a_rule_that_never_decides_refuses_nothing() -> None:
    first = {"match": {"namespaces": ["a"]}, "participation": "OptOut"}
    free = frozenset({"a"})

    assert _refusing(*_rules(first, LIMIT)) == RefusingNamespaces(others=True, names=free)
    above = _rules(first, name="above", priority=1)
    assert _refusing(*_rules(LIMIT), *above) == RefusingNamespaces(others=True, names=free)
    beside = _rules(first, name="beside")
    assert _refusing(*_rules(LIMIT), *beside) == RefusingNamespaces(others=True), "which of the two decides depends"
    sometimes = _rules(first | {"match": {"namespaces": ["a"], "expression": "true"}}, name="above", priority=1)
    assert _refusing(*_rules(LIMIT), *sometimes) == RefusingNamespaces(others=True)


def test_more_names_than_can_be_listed_are_all_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fail_closed_namespaces, "MOST_NAMES", 2)
    named = _rules(LIMIT | {"match": {"namespaces": ["a", "b", "c"]}})

    assert _refusing(*named) == RefusingNamespaces(others=True, too_many=True)
    assert _refusing(*named).describe() == "all namespaces"


_NAMES = ("a", "b", "c", "kube-system")
_matches = st.fixed_dictionaries(
    {},
    optional={
        "namespaces": st.lists(st.sampled_from(_NAMES), min_size=1, max_size=2, unique=True),
        "namespaceSelector": st.sampled_from(
            [
                {"matchLabels": {"tier": "x"}},
                {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
                {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]},
                {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
            ]
        ),
        "podSelector": st.just({"matchLabels": {"pod": "x"}}),
        "serviceAccounts": st.sampled_from([["x"], ["a/x"]]),
        "expression": st.sampled_from(["true", "false", "object.missing"]),
    },
)
_rule_specs = st.builds(
    lambda match, what: {"match": match} | what,
    _matches,
    st.sampled_from([LIMIT, {}, {"participation": "OptOut"}, LIMIT | {"warnOnly": True}]),
)
_policies = st.lists(
    st.tuples(
        st.lists(_rule_specs, min_size=1, max_size=3),
        st.integers(0, 2),
        st.sampled_from([{}, {"whenUnreviewed": "Refuse"}, {"whenUnreviewed": "Admit"}]),
    ),
    max_size=4,
)
_labels = st.sampled_from([{}, {"tier": "x"}, {"tier": "y"}])


@given(
    _policies,
    st.dictionaries(st.sampled_from(_NAMES), _labels),
    st.sampled_from([*_NAMES, "new"]),
    _labels,
    st.sampled_from([{}, {"pod": "x"}]),
    st.sampled_from(["default", "x"]),
)
def test_a_pod_whose_rule_refuses_is_always_sent_to_the_webhook_that_must_answer(
    policies: list[tuple[list[Object], int, Object]],
    known: dict[str, dict[str, str]],
    namespace: str,
    labels: dict[str, str],
    pod_labels: dict[str, str],
    account: str,
) -> None:
    """Whatever the policies are: the rule that decides about the pod is never overlooked, and no pod is sent twice."""
    rules = [
        rule
        for number, (specs, priority, more) in enumerate(policies)
        for rule in _rules(*specs, name=f"policy-{number}", priority=priority, **more)
    ]
    subject = Subject(
        namespace=namespace,
        namespace_labels=known.get(namespace, labels),
        pod_labels=pod_labels,
        service_account=account,
    )
    decides = PolicySet(rules).choose(subject).rule
    refusing = refusing_namespaces(rules, known, EXCLUDED)

    webhooks = Webhooks(target=Address(url="https://webhook.example"), excluded_namespaces=EXCLUDED)
    sent = [
        member["failurePolicy"]
        for member in webhook_configurations.mutating(webhooks, refusing)["webhooks"]
        if _selects(member["namespaceSelector"], namespace)
    ]
    if namespace in EXCLUDED:
        assert sent == []
    else:
        assert sent == ["Fail" if namespace in refusing else "Ignore"]
        assert namespace in refusing or not decides.refuses_unreviewed


def test_every_namespace_but_the_excluded_refuses_if_the_installation_says_so() -> None:
    webhooks = Webhooks(
        target=Address(url="https://webhook.example"), excluded_namespaces=EXCLUDED, refuse_unreviewed=True
    )
    (member,) = webhook_configurations.mutating(webhooks)["webhooks"]

    assert member["failurePolicy"] == "Fail"
    assert _selects(member["namespaceSelector"], "team-a")
    assert not any(_selects(member["namespaceSelector"], each) for each in EXCLUDED)


def _selects(selector: Object, namespace: str) -> bool:
    (requirement,) = selector["matchExpressions"]
    assert requirement["key"] == "kubernetes.io/metadata.name"
    assert requirement["values"], "the API server takes no empty list"
    return bool((namespace in requirement["values"]) == (requirement["operator"] == "In"))
