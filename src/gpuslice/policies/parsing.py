"""How SlicePolicy objects become rules, with complaints that name the policy and the field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.dialects import registry, resource_names
from gpuslice.dialects.forms import GpuModelName
from gpuslice.model.devices import SHARED_RESOURCE, WHOLE_RESOURCE
from gpuslice.model.errors import GpusliceError
from gpuslice.model.pods import Toleration
from gpuslice.model.policies import Backend, Defaults, Match, Maximum, Rule
from gpuslice.model.selectors import LabelSelector, Operator, Requirement
from gpuslice.model.values import kubernetes_quantities
from gpuslice.policies.expressions import ExpressionError, compiled
from gpuslice.policies.rule_set import PolicySet
from gpuslice.policies.schema import API_VERSION, KIND, DefaultsSpec, MatchSpec, MaximumSpec, SlicePolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuslice.model.pods import Quantity
    from gpuslice.policies.schema import Selector, TolerationSpec


class PolicyError(GpusliceError):
    """Raised when a SlicePolicy cannot be what its author meant. Names the policy and the field."""


@dataclass(frozen=True, slots=True)
class LoadedPolicies:
    """What can be used of a set of objects, and why the rest cannot."""

    policies: PolicySet
    errors: tuple[PolicyError, ...]


def load_policies(documents: Iterable[Mapping[str, Any]]) -> LoadedPolicies:
    """One bad policy is left out; it never takes the others down."""
    rules: list[Rule] = []
    errors: list[PolicyError] = []
    for document in documents:
        try:
            rules += parse_policy(document)
        except PolicyError as error:
            errors.append(error)
    return LoadedPolicies(PolicySet(rules), tuple(errors))


def parse_policy(document: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules of one SlicePolicy object, expressions compiled once to see that they can be."""
    name = _name(document)
    kind, version = document.get("kind"), document.get("apiVersion")
    if (kind, version) != (KIND, API_VERSION) and isinstance(kind, str) and isinstance(version, str):
        raise PolicyError(f"{kind} {name}: it is a {kind} of {version}, not a {KIND} of {API_VERSION}")
    try:
        policy = msgspec.convert(document, SlicePolicy)
    except msgspec.ValidationError as error:
        raise PolicyError(f"SlicePolicy {name}: {_plainly(error)}") from None
    seen: dict[str, int] = {}
    for position, rule in enumerate(policy.spec.rules):
        if rule.name in seen:
            raise PolicyError(
                f"SlicePolicy {name}: spec.rules[{position}].name: {rule.name!r} is also the name of "
                f"spec.rules[{seen[rule.name]}]; give each rule a name of its own"
            )
        seen[rule.name] = position
    return tuple(_rule(policy, position) for position in range(len(policy.spec.rules)))


def _rule(policy: SlicePolicy, position: int) -> Rule:
    spec = policy.spec.rules[position]
    where = _Where(policy.metadata.name, f"spec.rules[{position}]")
    maximum, defaults = spec.maximum or MaximumSpec(), spec.defaults or DefaultsSpec()
    rule = Rule(
        policy=policy.metadata.name,
        name=spec.name,
        priority=policy.spec.priority,
        position=position,
        match=_match(spec.match or MatchSpec(), where),
        participation=spec.participation,
        dialects=None if spec.dialects is None else frozenset(spec.dialects),
        backend=spec.backend,
        target_resource=_target_resource(spec.target_resource, where),
        presets=spec.presets,
        default_slots=spec.default_slots,
        defaults=Defaults(memory=where.read_bytes(defaults.memory, "defaults.memory"), cores=defaults.cores),
        maximum=Maximum(
            memory=where.read_bytes(maximum.memory, "maximum.memory"),
            cores=maximum.cores,
            devices=maximum.devices,
            slots=maximum.slots,
        ),
        gpu_model=_gpu_model(spec.gpu_model, where),
        other_schedulers=spec.other_schedulers,
        allow=frozenset(spec.allow),
        tolerations=tuple(_toleration(wanted, where, index) for index, wanted in enumerate(spec.tolerations)),
        node_selector=spec.node_selector,
        warn_only=spec.warn_only,
        when_unreviewed=policy.spec.when_unreviewed,
    )
    _refuse_contradictions(rule, where)
    return rule


def _refuse_contradictions(rule: Rule, where: _Where) -> None:
    for what, default, most in (
        ("memory", rule.defaults.memory, rule.maximum.memory),
        ("cores", rule.defaults.cores, rule.maximum.cores),
    ):
        if default is not None and most is not None and default > most:
            raise where.error(f"defaults.{what}", f"is above maximum.{what}, so no pod could have it")
    if rule.target_resource is not None and rule.backend not in (None, Backend.EXTENDED):
        raise where.error("targetResource", f"counts slots, and the backend {rule.backend} has none; leave one out")
    if rule.dialects is not None and not rule.dialects:
        raise where.error("dialects", 'allows none; write participation: "OptOut" to leave pods alone')
    understood = registry.read_by(Backend.GPU_MANAGER)
    if rule.backend is Backend.GPU_MANAGER and not {*understood} & {*(rule.dialects or registry.NAMES)}:
        raise where.error(
            "backend", f"gpu-manager understands only {' and '.join(understood)}, which dialects does not allow"
        )
    if rule.backend is Backend.GPU_MANAGER and rule.gpu_model is not None:
        raise where.error("gpuModel", "gpu-manager gives any GPU; leave one of gpuModel and backend out")


def _match(spec: MatchSpec, where: _Where) -> Match:
    if spec.expression:
        try:
            compiled(spec.expression)
        except ExpressionError as error:
            raise where.error("match.expression", str(error)) from None
    return Match(
        namespaces=frozenset(spec.namespaces),
        namespace_labels=_selector(spec.namespace_selector, where, "match.namespaceSelector"),
        pod_labels=_selector(spec.pod_selector, where, "match.podSelector"),
        service_accounts=frozenset(spec.service_accounts),
        expression=spec.expression,
    )


def _selector(spec: Selector | None, where: _Where, field: str) -> LabelSelector:
    try:
        return LabelSelector() if spec is None else label_selector(spec)
    except SelectorError as error:
        raise where.error(f"{field}.{error.field}", error.complaint) from None


class SelectorError(ValueError):
    """Raised for a selector that selects nothing by mistake. Names the field, from the selector on."""

    def __init__(self, field: str, complaint: str) -> None:
        super().__init__(f"{field}: {complaint}")
        self.field = field
        self.complaint = complaint


def label_selector(spec: Selector) -> LabelSelector:
    """Raises SelectorError for one that makes no sense."""
    requirements = [Requirement(key, Operator.IN, frozenset((value,))) for key, value in spec.match_labels.items()]
    for index, wanted in enumerate(spec.match_expressions):
        needs_values = wanted.operator in (Operator.IN, Operator.NOT_IN)
        if needs_values != bool(wanted.values):
            raise SelectorError(
                f"matchExpressions[{index}].values",
                f"{wanted.operator} needs {'at least one value' if needs_values else 'no values'}",
            )
        requirements.append(Requirement(wanted.key, wanted.operator, frozenset(wanted.values)))
    return LabelSelector(tuple(requirements))


def _toleration(spec: TolerationSpec, where: _Where, index: int) -> Toleration:
    """Checked here, or the API server would refuse every pod that gets it."""
    field = f"tolerations[{index}]"
    if spec.operator == "Exists" and spec.value:
        raise where.error(f"{field}.value", "Exists has no value; leave it out, or write the operator Equal")
    if spec.key is None and spec.operator != "Exists":
        raise where.error(f"{field}.key", "is missing; only the operator Exists can do without")
    if spec.toleration_seconds is not None and spec.effect != "NoExecute":
        raise where.error(f"{field}.tolerationSeconds", "has a meaning only with the effect NoExecute")
    return msgspec.convert(msgspec.to_builtins(spec), Toleration)


def _target_resource(name: str | None, where: _Where) -> str | None:
    """Checked here, or pods would get what they did not ask for, or what the API server refuses."""
    if name is None:
        return None
    try:
        resource_names.check(name, example=SHARED_RESOURCE)
    except ValueError as error:
        raise where.error("targetResource", str(error)) from None
    if name == WHOLE_RESOURCE:
        raise where.error("targetResource", f"{name!r} counts whole GPUs; write for example {SHARED_RESOURCE}")
    return name


def _gpu_model(text: str | None, where: _Where) -> str | None:
    if text is None:
        return None
    try:
        return GpuModelName().parse(text)
    except ValueError as error:
        raise where.error("gpuModel", str(error)) from None


@dataclass(frozen=True, slots=True)
class _Where:
    """A place in a policy, for complaints."""

    policy: str
    field: str

    def error(self, field: str, reason: str) -> PolicyError:
        return PolicyError(f"SlicePolicy {self.policy}: {self.field}.{field}: {reason}")

    def read_bytes(self, value: Quantity | None, field: str) -> int | None:
        if value is None:
            return None
        try:
            amount = kubernetes_quantities.parse_whole(value)
        except ValueError as error:
            raise self.error(field, f"{error}; write for example 4Gi") from None
        if amount == 0:
            raise self.error(field, "is 0; leave it out, or write for example 4Gi")
        return amount


def _name(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) and name else "(without a name)"


def _plainly(error: msgspec.ValidationError) -> str:
    """Msgspec says the reason and then where; we say it the other way round, and without its marks."""
    reason, _, where = str(error).partition(" - at `")
    field = where.removesuffix("`").removeprefix("$").removeprefix(".")
    reason = reason.replace("`", "'")
    return f"{field}: {reason}" if field else reason
