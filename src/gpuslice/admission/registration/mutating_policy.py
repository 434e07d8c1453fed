"""CastSlice's rewrite without a server.

A MutatingAdmissionPolicy gives the pods that the webhook would give (castslice, on slots, under no SlicePolicy), and a
ValidatingAdmissionPolicy refuses what the webhook would refuse.

A MutatingAdmissionPolicy cannot say no: it leaves a pod that makes no sense as it is, and the other one, which comes
later, finds a pod that still asks for a whole GPU, and says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuslice.admission import pod_annotations
from gpuslice.admission.quota_charges import asked_resources
from gpuslice.admission.registration.webhook_configurations import LABELS, PODS, excluding
from gpuslice.dialects import common_fields, registry
from gpuslice.dialects.cel import list_of, quote
from gpuslice.dialects.known import castslice
from gpuslice.model.policies import NO_RULE, Backend
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuslice.dialects.dialect import PodField

NAME: Final = "gpuslice-castslice"
_VERSION: Final = "admissionregistration.k8s.io/v1"
_ANNOTATIONS: Final = "object.metadata.annotations"
_SLICED: Final = quote(pod_annotations.SLICED)
_LABEL: Final = (
    f"[has(object.metadata.labels)"
    f" ? JSONPatch{{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey({_SLICED}), value: 'true'}}"
    f" : JSONPatch{{op: 'add', path: '/metadata/labels', value: {{{_SLICED}: 'true'}}}}]"
)


def documents(
    settings: Settings = DEFAULT_SETTINGS, excluded_namespaces: Sequence[str] = ("kube-system",)
) -> list[dict[str, Any]]:
    """Both policies and their bindings."""
    text = _Expressions(settings)
    matching = {
        "matchPolicy": "Equivalent",
        "namespaceSelector": excluding(excluded_namespaces),
        "objectSelector": {},
        "resourceRules": [{**PODS, "scope": "*"}],
    }
    optimized = {"name": "is-to-be-optimized", "expression": text.annotated}
    unserved = {"name": "still-asks-for-a-gpu", "expression": text.any_asks()}
    mutating = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": matching,
        "matchConditions": [optimized],
        "variables": [*text.common_variables(), *text.mark_variables()],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": text.patch()}}],
    }
    validating = {
        "failurePolicy": "Fail",
        "matchConstraints": matching,
        "matchConditions": [optimized, unserved],
        "variables": text.common_variables(),
        "validations": [{**each, "reason": "Invalid"} for each in text.validations()],
    }
    return [
        _document("MutatingAdmissionPolicy", mutating),
        _document("MutatingAdmissionPolicyBinding", {"policyName": NAME}),
        _document("ValidatingAdmissionPolicy", validating),
        _document("ValidatingAdmissionPolicyBinding", {"policyName": NAME, "validationActions": ["Deny"]}),
    ]


def _document(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": _VERSION, "kind": kind, "metadata": {"name": NAME, "labels": dict(LABELS)}, "spec": spec}


class _Expressions:
    """In CEL, what castslice, pod_annotations and the backend extended read in Python. `c` is a container."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._whole = quote(settings.whole_resource)
        self._target = quote(settings.shared_resource)
        self._optimize, self._ratio, self._workload = (
            field.name_in(settings) for field in (castslice.OPTIMIZE, castslice.RATIO, castslice.WORKLOAD)
        )
        self.annotated = f'has({_ANNOTATIONS}) && {_said(self._optimize)} && {_text(self._optimize)} == "true"'

    def any_asks(self) -> str:
        """The same as `asking`, where there are no variables yet."""
        kinds = ("object.spec.containers", "(has(object.spec.initContainers) ? object.spec.initContainers : [])")
        return " || ".join(f"{kind}.exists(c, {self._asks()})" for kind in kinds)

    def common_variables(self) -> list[dict[str, str]]:
        ratio, workload = self._ratio, self._workload
        presets = self._settings.get(castslice.PRESETS).items()
        bad_ratio = castslice.RATIO_FORM.malformed(_text(ratio))
        return _variables(
            containers="object.spec.containers",
            initContainers="has(object.spec.initContainers) ? object.spec.initContainers : []",
            places="variables.initContainers + variables.containers",
            asking=f"variables.places.filter(c, {self._asks()})",
            presets=f"{{{', '.join(f'{quote(name)}: {slots}' for name, slots in presets)}}}",
            oneWay=f"variables.asking.all(c, {self._one_way()}) && {self._no_other_fields()}",
            whole=f"variables.asking.all(c, {self._whole_number()})",
            one=f"variables.asking.all(c, quantity({self._asked()}).compareTo(quantity('1')) == 0)",
            goodRatio=f"!({_said(ratio)}) || !{bad_ratio}",
            knownWorkload=f"!({_said(workload)}) || {_text(workload)} in variables.presets",
            anyGpu=self._any_gpu(),
        )

    def mark_variables(self) -> list[dict[str, str]]:
        ratio, workload = self._ratio, self._workload
        slots = (
            f"{_said(ratio)} ? int({_text(ratio)}) : "
            f"{_said(workload)} ? variables.presets[{_text(workload)}] : "
            f"{self._settings.get(castslice.DEFAULT_SLOTS)}"
        )
        earlier = f'{_earlier(pod_annotations.SLICE)}.split("; ").filter(entry, entry.contains(": "))'
        kept = "variables.earlier.filter(entry, entry.startsWith(c.name + ': '))"
        described = (
            f"{self._asks()} ? c.name + ': ' + variables.described : "
            f"{self._served()} && {kept}.size() > 0 ? {kept}[{kept}.size() - 1] : ''"
        )
        return _variables(
            slots=slots,
            described="string(variables.slots) + (variables.slots == 1 ? ' slot' : ' slots')",
            earlier=earlier,
            slices=f"variables.places.map(c, {described}).filter(text, text != '').join('; ')",
        )

    def patch(self) -> str:
        """What is added comes before what is removed, so that no map is empty on the way."""
        has_limits, has_requests = (f"has(c.resources.{part})" for part in ("limits", "requests"))
        in_limits, in_requests = self._in("limits"), self._in("requests")
        slots = "string(variables.slots)"
        operations = []
        for kind in ("containers", "initContainers"):
            base = f"'/spec/{kind}/' + string(i) + '/resources"
            limit, request = (f"{base}/{part}/' + jsonpatch.escapeKey" for part in ("limits", "requests"))
            target, whole = f"({self._target})", f"({self._whole})"
            for condition, operation in (
                (has_limits, f"op: 'add', path: {limit}{target}, value: {slots}"),
                (f"!{has_limits}", f"op: 'add', path: {base}/limits', value: {{{self._target}: {slots}}}"),
                (in_requests, f"op: 'add', path: {request}{target}, value: {slots}"),
                (in_limits, f"op: 'remove', path: {limit}{whole}"),
                (f"{has_requests} && {in_requests}", f"op: 'remove', path: {request}{whole}"),
            ):
                operations.append(
                    f"variables.{kind}.transformList(i, c, {self._asks()} && {condition}, JSONPatch{{{operation}}})"
                )
        operations += [_LABEL, *(self._annotate(name, value) for name, value in self._annotations().items())]
        sound = "variables.oneWay && variables.whole && variables.goodRatio && variables.knownWorkload"
        sound += " && variables.one && variables.anyGpu"
        return f"variables.asking.size() > 0 && {sound} ? " + " + ".join(operations) + " : []"

    def validations(self) -> list[dict[str, str]]:
        """In the order in which the webhook looks."""
        settings = self._settings
        presets = settings.get(castslice.PRESETS)
        known = ", ".join(sorted(presets)) or "none"
        return [
            {
                "expression": "variables.oneWay",
                "message": "gpuslice: a container asks for a GPU in two ways: castslice, and another dialect or a "
                "claim; keep one of them",
            },
            {
                "expression": "variables.whole",
                "message": f"gpuslice: {settings.whole_resource} must be a whole number, the same in limits and in "
                "requests; write for example 1",
            },
            {
                "expression": "variables.goodRatio",
                **self._complaint(castslice.RATIO, "is not a positive whole number", castslice.RATIO_FORM.remedy),
            },
            {
                "expression": "variables.knownWorkload",
                **self._complaint(castslice.WORKLOAD, "is not a workload type", f"the known ones are {known}"),
            },
            {
                "expression": "variables.one",
                "message": f"gpuslice: slots cannot be spread over several GPUs; write {settings.whole_resource}: 1",
            },
            {
                "expression": "variables.anyGpu",
                "message": "gpuslice: slots are of any GPU, and containers do not share them; leave out "
                f"{common_fields.GPU_MODEL.name} and {common_fields.SHARING.name}, or use the webhook and claims",
            },
            {
                "expression": "false",
                "message": f"gpuslice: the pod was not rewritten; see that the MutatingAdmissionPolicy {NAME} and its "
                "binding are there",
            },
        ]

    def _in(self, part: str) -> str:
        return f"(has(c.resources.{part}) && {self._whole} in c.resources.{part})"

    def _asked(self) -> str:
        """The quantity, where there is one: that of the limits, if it is in both."""
        return f"({self._in('limits')} ? c.resources.limits[{self._whole}] : c.resources.requests[{self._whole}])"

    def _asks(self) -> str:
        """Zero asks for nothing. The API server has one way to write it."""
        present = f"({self._in('limits')} || {self._in('requests')})"
        return f"(has(c.resources) && {present} && {self._asked()} != '0')"

    def _whole_number(self) -> str:
        amount = f"quantity({self._asked()})"
        both = f"{self._in('limits')} && {self._in('requests')}"
        limit, request = (f"quantity(c.resources.{part}[{self._whole}])" for part in ("limits", "requests"))
        same = f"{limit}.compareTo({request}) == 0"
        return f"{amount}.isInteger() && {amount}.isGreaterThan(quantity('0')) && (!({both}) || {same})"

    def _one_way(self) -> str:
        other = [f"n in {list_of(registry.BY_RESOURCE)}"]
        other += [family.has_in_cel("n") for family in registry.BY_FAMILY]
        beside = [
            f"(has(c.resources.{part}) && c.resources.{part}.exists(n, c.resources.{part}[n] != '0' && "
            f"({' || '.join(other)})))"
            for part in ("limits", "requests")
        ]
        claims = "(has(c.resources.claims) && c.resources.claims.size() > 0)"
        return f"!({' || '.join([*beside, claims])})"

    def _no_other_fields(self) -> str:
        asking = [field for fields in registry.ASKING.values() for field in fields]
        clauses = [f"!{list_of(_names(asking, 'annotations'))}.exists(n, n in {_ANNOTATIONS})"]
        if labels := _names(asking, "labels"):
            clauses.append(
                f"!(has(object.metadata.labels) && {list_of(labels)}.exists(n, n in object.metadata.labels))"
            )
        return " && ".join(clauses)

    def _any_gpu(self) -> str:
        """Slots can neither be of one model nor held by several containers."""
        model, sharing = common_fields.GPU_MODEL.name, common_fields.SHARING.name
        own = f"{_text(sharing)} == {quote(common_fields.OWN)}"
        return f"!({_said(model)}) && (!({_said(sharing)}) || {own})"

    def _served(self) -> str:
        """Whether an earlier call gave the container its slice: see `pod_annotations.Served`."""
        names = f"[{self._target}, {self._whole}]"
        holds = f"has(c.resources.limits) && {names}.exists(n, n in c.resources.limits)"
        prefix = quote(pod_annotations.PREFIX)
        ours = f"has(p.resourceClaimTemplateName) && p.resourceClaimTemplateName.startsWith({prefix})"
        claims = (
            "has(c.resources.claims) && has(object.spec.resourceClaims) && c.resources.claims.exists(k, "
            f"object.spec.resourceClaims.exists(p, p.name == k.name && {ours}))"
        )
        return f"({quote(pod_annotations.DIALECT)} in {_ANNOTATIONS} && has(c.resources) && ({holds} || {claims}))"

    def _annotations(self) -> dict[str, str]:
        return {
            pod_annotations.SLICE: "variables.slices",
            pod_annotations.DIALECT: _merged(pod_annotations.DIALECT, castslice.DIALECT.name, registry.NAMES),
            pod_annotations.BACKEND: _merged(pod_annotations.BACKEND, Backend.EXTENDED, list(Backend)),
            pod_annotations.POLICY: quote(NO_RULE.label),
            asked_resources.ANNOTATION: self._taken_off(),
        }

    def _taken_off(self) -> str:
        """As `asked_resources.merge` of a pod that no other call has served."""
        amount = f"string(quantity({self._asked()}).asInteger())"
        named = quote(f"{self._settings.whole_resource}=")
        return f"variables.asking.map(c, c.name + ': ' + {named} + {amount}).join('; ')"

    def _complaint(self, field: PodField[Any], reason: str, remedy: str) -> dict[str, str]:
        """With what the annotation says, and without it where that cannot stand in a message."""
        path, said = field.path_in(self._settings), _text(field.name_in(self._settings))
        before, after = quote(f"gpuslice: {path}: '"), quote(f"' {reason}; {remedy}")
        return {
            "message": f"gpuslice: {path}: {reason}; {remedy}",
            "messageExpression": f"{before} + {said} + {after}",
        }

    @staticmethod
    def _annotate(name: str, value: str) -> str:
        path = f"'/metadata/annotations/' + jsonpatch.escapeKey({quote(name)})"
        return f"[JSONPatch{{op: 'add', path: {path}, value: {value}}}]"


def _merged(annotation: str, name: str, known: Iterable[str]) -> str:
    """As `pod_annotations.merge_names`: what an earlier call wrote stays beside it."""
    kept = f"{_earlier(annotation)}.split(', ')"
    return f"{list_of(sorted(known))}.filter(n, n == {quote(name)} || n in {kept}).join(', ')"


def _earlier(annotation: str) -> str:
    return f"({_said(annotation)} ? {_text(annotation)} : '')"


def _said(annotation: str) -> str:
    return f"{quote(annotation)} in {_ANNOTATIONS}"


def _text(annotation: str) -> str:
    return f"{_ANNOTATIONS}[{quote(annotation)}]"


def _names(fields: Iterable[PodField[Any]], kind: str) -> list[str]:
    return [field.name for field in fields if field.kind == kind]


def _variables(**expressions: str) -> list[dict[str, str]]:
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]
