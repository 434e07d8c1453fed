"""CastSlice's rewrite without a server.

A MutatingAdmissionPolicy gives the pods that the webhook would give (castslice, on slots, under no SlicePolicy), and a
ValidatingAdmissionPolicy refuses what the webhook would refuse.

A MutatingAdmissionPolicy cannot say no: it leaves a pod that makes no sense as it is, and the other one, which comes
later, finds a pod that still asks for a whole GPU, and says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuslice.admission import marks
from gpuslice.admission.configurations import LABELS, PODS, excluding
from gpuslice.admission.match_conditions import quote
from gpuslice.dialects import castslice, hami, instaslice, native, registry, vcuda
from gpuslice.dialects.fields import annotation_field
from gpuslice.model.policies import NO_RULE, Backend
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NAME: Final = "gpuslice-castslice"
_VERSION: Final = "admissionregistration.k8s.io/v1"
_OTHERS: Final = (
    *(vcuda.CORE, vcuda.MEMORY),
    *(native.MEMORY, native.CORES),
    *(hami.MEMORY, hami.MEMORY_PERCENTAGE, hami.CORES),
)
_ANNOTATIONS: Final = "object.metadata.annotations"
_LABEL: Final = (
    f"[has(object.metadata.labels)"
    f" ? JSONPatch{{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey({quote(marks.SLICED)}), value: 'true'}}"
    f" : JSONPatch{{op: 'add', path: '/metadata/labels', value: {{{quote(marks.SLICED)}: 'true'}}}}]"
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
    """The same reading in CEL that castslice, marks and the backend extended have in Python. `c` is a container."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._whole = quote(settings.whole_resource)
        self._target = quote(settings.shared_resource)
        optimize = quote(settings.castslice_optimize)
        self.annotated = f'has({_ANNOTATIONS}) && {optimize} in {_ANNOTATIONS} && {_ANNOTATIONS}[{optimize}] == "true"'

    def any_asks(self) -> str:
        """The same as `asking`, where there are no variables yet."""
        kinds = ("object.spec.containers", "(has(object.spec.initContainers) ? object.spec.initContainers : [])")
        return " || ".join(f"{kind}.exists(c, {self._asks()})" for kind in kinds)

    def common_variables(self) -> list[dict[str, str]]:
        ratio, workload = quote(self._settings.castslice_ratio), quote(self._settings.castslice_workload)
        presets = ", ".join(f"{quote(name)}: {slots}" for name, slots in self._settings.castslice_presets.items())
        return _variables(
            containers="object.spec.containers",
            initContainers="has(object.spec.initContainers) ? object.spec.initContainers : []",
            places="variables.initContainers + variables.containers",
            asking=f"variables.places.filter(c, {self._asks()})",
            presets=f"{{{presets}}}",
            oneWay=f"variables.asking.all(c, {self._one_way()}) && {self._no_other_annotations()}",
            whole=f"variables.asking.all(c, {self._whole_number()})",
            knownWorkload=f"!({workload} in {_ANNOTATIONS}) || {_ANNOTATIONS}[{workload}] in variables.presets",
            goodRatio=f"!({ratio} in {_ANNOTATIONS}) || {_ANNOTATIONS}[{ratio}].matches('^[0-9]{{1,9}}$')"
            f" && !{_ANNOTATIONS}[{ratio}].matches('^0+$')",
        )

    def mark_variables(self) -> list[dict[str, str]]:
        ratio, workload = quote(self._settings.castslice_ratio), quote(self._settings.castslice_workload)
        slots = (
            f"{ratio} in {_ANNOTATIONS} ? int({_ANNOTATIONS}[{ratio}]) : "
            f"{workload} in {_ANNOTATIONS} ? variables.presets[{_ANNOTATIONS}[{workload}]] : "
            f"{self._settings.castslice_default_slots}"
        )
        earlier = f'{_earlier(marks.SLICE)}.split("; ").filter(entry, entry.contains(": "))'
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
        operations += [_LABEL, *(self._mark(name, value) for name, value in self._marks().items())]
        sound = "variables.oneWay && variables.whole && variables.knownWorkload && variables.goodRatio"
        return f"variables.asking.size() > 0 && {sound} ? " + " + ".join(operations) + " : []"

    def validations(self) -> list[dict[str, str]]:
        """In the order in which the webhook looks."""
        settings = self._settings
        workload, ratio = settings.castslice_workload, settings.castslice_ratio
        known = ", ".join(sorted(settings.castslice_presets)) or "none"
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
                "expression": "variables.knownWorkload",
                **_complaint(workload, "is not a workload type", f"the known ones are {known}"),
            },
            {
                "expression": "variables.goodRatio",
                **_complaint(ratio, "is not a positive whole number", 'write for example "2"'),
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
        others = _list(_OTHERS)
        beside = [
            f"(has(c.resources.{part}) && c.resources.{part}.exists(n, c.resources.{part}[n] != '0' && "
            f"(n in {others} || n.startsWith({quote(instaslice.PREFIX)}))))"
            for part in ("limits", "requests")
        ]
        claims = "(has(c.resources.claims) && c.resources.claims.size() > 0)"
        return f"!({' || '.join([*beside, claims])})"

    def _no_other_annotations(self) -> str:
        return f"!{_list(registry.ANNOTATIONS)}.exists(n, n in {_ANNOTATIONS})"

    def _served(self) -> str:
        """Whether an earlier call gave the container its slice: see `marks.Served`."""
        names = f"[{self._target}, {self._whole}]"
        holds = f"has(c.resources.limits) && {names}.exists(n, n in c.resources.limits)"
        ours = f"has(p.resourceClaimTemplateName) && p.resourceClaimTemplateName.startsWith({quote(marks.PREFIX)})"
        claims = (
            "has(c.resources.claims) && has(object.spec.resourceClaims) && c.resources.claims.exists(k, "
            f"object.spec.resourceClaims.exists(p, p.name == k.name && {ours}))"
        )
        return f"({quote(marks.DIALECT)} in {_ANNOTATIONS} && has(c.resources) && ({holds} || {claims}))"

    def _marks(self) -> dict[str, str]:
        return {
            marks.SLICE: "variables.slices",
            marks.DIALECT: _merged(marks.DIALECT, castslice.NAME, registry.NAMES),
            marks.BACKEND: _merged(marks.BACKEND, Backend.EXTENDED, list(Backend)),
            marks.POLICY: quote(NO_RULE.label),
        }

    @staticmethod
    def _mark(name: str, value: str) -> str:
        path = f"'/metadata/annotations/' + jsonpatch.escapeKey({quote(name)})"
        return f"[JSONPatch{{op: 'add', path: {path}, value: {value}}}]"


def _merged(mark: str, name: str, known: Iterable[str]) -> str:
    """As `marks.merge_names`: what an earlier call wrote stays beside it."""
    kept = f"{_earlier(mark)}.split(', ')"
    return f"{_list(sorted(known))}.filter(n, n == {quote(name)} || n in {kept}).join(', ')"


def _earlier(mark: str) -> str:
    return f"({quote(mark)} in {_ANNOTATIONS} ? {_ANNOTATIONS}[{quote(mark)}] : '')"


def _complaint(annotation: str, reason: str, remedy: str) -> dict[str, str]:
    """With what the annotation says, and without it where that cannot stand in a message."""
    field = annotation_field(annotation)
    said = f"{_ANNOTATIONS}[{quote(annotation)}]"
    rest = quote(f"' {reason}; {remedy}")
    return {
        "message": f"gpuslice: {field}: {reason}; {remedy}",
        "messageExpression": f"{quote(f'gpuslice: {field}: ' + chr(39))} + {said} + {rest}",
    }


def _list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quote, texts))}]"


def _variables(**expressions: str) -> list[dict[str, str]]:
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]
