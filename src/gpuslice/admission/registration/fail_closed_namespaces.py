"""In which namespaces the API server refuses pods that ask for a GPU while no webhook answers.

A user can forge annotations and labels of a pod, so nothing but the webhook's answer shows that it has seen the pod:
where pods must not pass without it, it is a webhook that must answer (`Fail`). The API server divides pods between the
two webhooks by the names of their namespaces. What else a rule looks at (a pod's labels, its service account, an
expression) is the pod's own to choose, so a namespace counts as soon as such a rule could decide about any pod there.

A namespace that is not known yet counts as well, unless every rule that could matter names other namespaces: a
namespace is under its limits from its first moment.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuslice.policies.rule_set import in_order, label_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from gpuslice.model.policies import Rule

#: Names in a selector. The API server compares each with a pod's: a thousand take it a tenth of a millisecond.
MOST_NAMES: Final = 1000


@dataclass(frozen=True, slots=True)
class RefusingNamespaces:
    """The namespaces in which unreviewed pods are refused."""

    #: Whether namespaces that are not in `names` are among them.
    others: bool = False
    #: Namespaces for which it is the other way round.
    names: frozenset[str] = frozenset()
    #: There were too many names to list, so all namespaces are among them.
    too_many: bool = False

    def __contains__(self, namespace: str) -> bool:
        return (namespace in self.names) != self.others

    def describe(self) -> str:
        """For people: `all namespaces but a, b`."""
        listed = ", ".join(sorted(self.names)[:5]) + (f" and {len(self.names) - 5} more" if len(self.names) > 5 else "")
        if not self.others:
            return listed or "no namespace"
        return f"all namespaces but {listed}" if listed else "all namespaces"


NO_NAMESPACE: Final = RefusingNamespaces()


def refusing_namespaces(
    rules: Iterable[Rule], known: Mapping[str, Mapping[str, str]], excluded: Collection[str]
) -> RefusingNamespaces:
    """The refusing ones of all namespaces but the excluded. `known` has the existing namespaces and their labels."""
    filed = _Filed(rules)
    if not filed.may_refuse:
        return NO_NAMESPACE
    others = filed.refuses_unseen()
    names = known.keys() if others else known.keys() | filed.named
    exceptions = frozenset(
        name for name in names if name not in excluded and filed.refuses(name, known.get(name)) != others
    )
    if len(exceptions) > MOST_NAMES:
        return RefusingNamespaces(others=True, too_many=True)
    return RefusingNamespaces(others, exceptions)


class _Filed:
    """The rules in the order in which they decide, each filed by what it wants of a namespace."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules: Final = in_order(rules)
        self.may_refuse: Final = any(rule.refuses_unreviewed for rule in self._rules)
        #: By namespace's name, by label, or by neither.
        self._by_name: dict[str, list[int]] = defaultdict(list)
        self._by_label: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self._unfiled: list[int] = []
        for position, rule in enumerate(self._rules):
            if rule.match.namespaces:
                for name in rule.match.namespaces:
                    self._by_name[name].append(position)
            elif keys := label_keys("", rule.match.namespace_labels):
                for key in keys:
                    self._by_label[key].append(position)
            else:
                self._unfiled.append(position)

    @property
    def named(self) -> Collection[str]:
        return self._by_name.keys()

    def refuses(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Without labels: the namespace does not exist yet, and may get any."""
        if labels is None:
            candidates = {*self._by_name.get(namespace, ()), *self._without_name()}
        else:
            keys = [key for name, value in labels.items() for key in (("", name), ("", name, value))]
            by_label = (position for key in keys for position in self._by_label.get(key, ()))
            candidates = {*self._by_name.get(namespace, ()), *by_label, *self._unfiled}
        return self._refuses(candidates, labels)

    def refuses_unseen(self) -> bool:
        """Whether pods of a namespace may be refused that no rule names and whose labels are not known."""
        return self._refuses(set(self._without_name()), None)

    def _without_name(self) -> Iterable[int]:
        yield from self._unfiled
        for positions in self._by_label.values():
            yield from positions

    def _refuses(self, candidates: set[int], labels: Mapping[str, str] | None) -> bool:
        """Whether one of them refuses and may decide. All of them are meant for the namespace by name, or by none."""
        decided, spoken = None, None
        for position in sorted(candidates):
            rule = self._rules[position]
            if decided is not None and rule.priority < decided:
                break
            if rule.policy == spoken or not _may_match(rule, labels):
                continue
            if rule.refuses_unreviewed:
                return True
            if _matches_every_pod(rule, labels):
                # Nothing of lower priority decides here, and nothing that comes later in the same policy.
                decided, spoken = rule.priority, rule.policy
        return False


def _may_match(rule: Rule, labels: Mapping[str, str] | None) -> bool:
    return labels is None or rule.match.namespace_labels.unmet(labels) is None


def _matches_every_pod(rule: Rule, labels: Mapping[str, str] | None) -> bool:
    match = rule.match
    return not (
        match.pod_labels
        or match.service_accounts
        or match.expression
        or (match.namespace_labels and (labels is None or match.namespace_labels.unmet(labels)))
    )
