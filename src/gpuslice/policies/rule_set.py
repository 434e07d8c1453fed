"""All rules of a cluster, and which of them decides about a pod.

Each rule is filed under the most selective condition it has, so that the rules that a pod is compared with are
those that share a namespace or a label with it: rules that do not match cost nothing, however many there are. Only
a rule whose sole condition is an expression (or a negation) is compared with every pod.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.model.policies import NO_RULE, Rule
from gpuslice.model.selectors import Operator
from gpuslice.policies.expressions import ExpressionError, compiled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuslice.model.policies import Match
    from gpuslice.model.selectors import LabelSelector
    from gpuslice.policies.subject import Subject


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What came of comparing one rule with a pod. The reason is empty where it matched."""

    rule: Rule
    matched: bool
    reason: str = ""
    #: The expression had no answer; that is a fault of the policy, and counted as such.
    failed: bool = False


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The rule that decides, and the rules whose expressions failed on the way to it."""

    rule: Rule
    failures: tuple[Verdict, ...] = ()


def in_order(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """From the highest priority down; rules of one policy side by side, as they stand in it."""
    return tuple(sorted(rules, key=lambda rule: (-rule.priority, rule.policy, rule.position)))


class PolicySet:
    """Built once for a set of rules; asked for every pod."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules: Final = in_order(rules)
        self._expressions = [compiled(rule.match.expression) if rule.match.expression else None for rule in self.rules]
        # The values are positions in `rules`: sorted, they go from the highest priority down, policy by policy.
        self._filed: dict[object, list[int]] = defaultdict(list)
        for position, rule in enumerate(self.rules):
            for key in _keys(rule):
                self._filed[key].append(position)
        self._filed = dict(self._filed)
        #: The resources that rules count slots in.
        self.target_resources: Final = frozenset(rule.target_resource for rule in self.rules if rule.target_resource)

    def choose(self, subject: Subject) -> Choice:
        failures: list[Verdict] = []
        best = NO_RULE
        spoken: str | None = None
        for position in self._candidates(subject):
            rule = self.rules[position]
            if best is not NO_RULE and rule.priority < best.priority:
                break
            if rule.policy == spoken:
                continue
            verdict = self._compare(position, subject)
            if verdict.failed:
                failures.append(verdict)
            if verdict.matched:
                spoken = rule.policy
                if best is NO_RULE or rule.match.specificity > best.match.specificity:
                    best = rule
        return Choice(best, tuple(failures))

    def verdicts(self, subject: Subject) -> Iterator[Verdict]:
        """Every rule, and why it matches or not. For people: it looks at all of them."""
        return (self._compare(position, subject) for position in range(len(self.rules)))

    def _candidates(self, subject: Subject) -> list[int]:
        filed = self._filed
        if not filed:
            return []
        keys: list[object] = [
            _EVERYWHERE,
            ("namespace", subject.namespace),
            ("account", subject.service_account),
            ("account", f"{subject.namespace}/{subject.service_account}"),
        ]
        for kind, labels in (("namespace label", subject.namespace_labels), ("pod label", subject.pod_labels)):
            for key, value in labels.items():
                keys.append((kind, key))
                keys.append((kind, key, value))
        return sorted({position for key in keys for position in filed.get(key, ())})

    def _compare(self, position: int, subject: Subject) -> Verdict:
        rule, expression = self.rules[position], self._expressions[position]
        if reason := _mismatch(rule.match, subject):
            return Verdict(rule, matched=False, reason=reason)
        if expression is None:
            return Verdict(rule, matched=True)
        try:
            holds = expression.holds(subject.variables)
        except ExpressionError as error:
            return Verdict(rule, matched=False, reason=f"its expression has no answer: {error}", failed=True)
        return Verdict(rule, matched=holds, reason="" if holds else "its expression is false")


def _mismatch(match: Match, subject: Subject) -> str:
    """Which condition does not hold, short of the expression; empty if all do."""
    if match.namespaces and subject.namespace not in match.namespaces:
        return f"the namespace is not {_one_of(match.namespaces)}"
    accounts = match.service_accounts
    if accounts and accounts.isdisjoint((subject.service_account, f"{subject.namespace}/{subject.service_account}")):
        return f"the service account is not {_one_of(accounts)}"
    if unmet := match.namespace_labels.unmet(subject.namespace_labels):
        return f"the namespace's labels do not meet: {unmet}"
    if unmet := match.pod_labels.unmet(subject.pod_labels):
        return f"the pod's labels do not meet: {unmet}"
    return ""


_EVERYWHERE: Final = ("everywhere",)


def _keys(rule: Rule) -> Iterable[tuple[str, ...]]:
    """Where a rule is filed: a pod that matches it has at least one of these."""
    match = rule.match
    if match.namespaces:
        return [("namespace", name) for name in match.namespaces]
    if match.service_accounts:
        return [("account", name) for name in match.service_accounts]
    for kind, selector in (("namespace label", match.namespace_labels), ("pod label", match.pod_labels)):
        if keys := label_keys(kind, selector):
            return keys
    return [_EVERYWHERE]


def label_keys(kind: str, selector: LabelSelector) -> list[tuple[str, ...]]:
    """Labels, or labels with values, of which a match of the selector has at least one; empty if it needs none."""
    wanted = [requirement for requirement in selector.requirements if requirement.operator is Operator.IN]
    if wanted:
        narrowest = min(wanted, key=lambda requirement: len(requirement.values))
        return [(kind, narrowest.key, value) for value in narrowest.values]
    present = [requirement for requirement in selector.requirements if requirement.operator is Operator.EXISTS]
    return [(kind, present[0].key)] if present else []


def _one_of(names: frozenset[str]) -> str:
    return " or ".join(sorted(names)[:3]) + (f" or one of {len(names) - 3} more" if len(names) > 3 else "")
