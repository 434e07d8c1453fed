"""Decides about one pod: reads what it asks, finds the rule, grants slices, and writes the patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.admission import limits, pod_annotations
from gpuslice.admission.backends import dra, extended, gpu_manager
from gpuslice.admission.decision import NO_GPU, Decision, Denial, Outcome
from gpuslice.admission.granting import Grant, NotAllowedError, check_together, grant
from gpuslice.admission.patching import PodEdit
from gpuslice.dialects import registry
from gpuslice.dialects.pod_values import Reader
from gpuslice.dialects.recognizing import asks_by_whole_gpus, read_pod
from gpuslice.model.policies import Backend, Participation
from gpuslice.model.requests import RequestError

if TYPE_CHECKING:
    from gpuslice.admission.backends.dra import Template
    from gpuslice.admission.context import Context
    from gpuslice.dialects.recognizing import Reading
    from gpuslice.model.pods import Pod
    from gpuslice.policies.rule_set import Choice
    from gpuslice.policies.subject import Subject

#: No node runs so many in one pod, and looking at each takes time from other pods.
_MOST_CONTAINERS: Final = 512
_USUAL_SCHEDULERS: Final = (None, "", "default-scheduler")


def decide(pod: Pod, subject: Subject, context: Context) -> Decision:
    """What is to happen to the pod. Never raises for anything that a pod can say."""
    if not registry.may_ask(pod, context.settings):
        return NO_GPU
    return decide_under(context.policies.choose(subject), pod, context)


def decide_under(choice: Choice, pod: Pod, context: Context) -> Decision:
    """The same, for a pod that may ask for a GPU, when the rule is known."""
    if choice.rule.participation is Participation.OPT_OUT:
        return Decision(
            outcome=Outcome.UNTOUCHED,
            reason="its policy leaves such pods alone",
            rule=choice.rule,
            failures=choice.failures,
        )
    decision = _too_many_containers(pod, choice) or _Deciding(pod, choice, context).run()
    return _warn_only(decision) if choice.rule.warn_only else decision


def _too_many_containers(pod: Pod, choice: Choice) -> Decision | None:
    spec = pod.spec
    count = 0 if spec is None else len(spec.containers or ()) + len(spec.init_containers or ())
    if count <= _MOST_CONTAINERS:
        return None
    message = (
        f"spec: the pod asks for a GPU and has {count} containers; at most {_MOST_CONTAINERS} are looked at, split it"
    )
    denial = Denial(message=message, malformed=False)
    return Decision(outcome=Outcome.DENIED, denial=denial, rule=choice.rule, failures=choice.failures)


class _Deciding:
    """One pod under one rule."""

    def __init__(self, pod: Pod, choice: Choice, context: Context) -> None:
        self._choice = choice
        self._rule = choice.rule
        self._context = context
        self._reader = Reader(
            pod,
            registry.settings_under(self._rule, context.settings),
            opted_in=self._rule.participation is Participation.OPT_IN,
        )
        self._target = self._rule.target_resource or context.settings.shared_resource
        self._served = pod_annotations.Served(self._reader, self._target)
        self._reader.forget(self._served.fields())
        self._readings: tuple[Reading, ...] = ()
        self._grants: tuple[Grant, ...] = ()

    def run(self) -> Decision:
        try:
            self._readings = tuple(read_pod(self._reader))
            if not self._readings:
                self._check_held(PodEdit(self._reader.pod))
                served = any(map(self._served, self._reader.places))
                return self._untouched("it has its slice already" if served else "it asks for no GPU in a dialect")
            self._grants = tuple(
                grant(reading, request, self._rule, self._context)
                for reading in self._readings
                for request in reading.asked.requests
            )
            check_together(self._grants, self._rule)
            return self._write()
        except (RequestError, NotAllowedError) as error:
            return Decision(
                outcome=Outcome.DENIED,
                denial=Denial(message=str(error), malformed=isinstance(error, RequestError)),
                readings=self._readings,
                grants=self._grants,
                rule=self._rule,
                failures=self._choice.failures,
            )

    def _untouched(self, reason: str) -> Decision:
        return Decision(
            outcome=Outcome.UNTOUCHED,
            reason=reason,
            readings=self._readings,
            grants=self._grants,
            rule=self._rule,
            failures=self._choice.failures,
        )

    def _write(self) -> Decision:
        edit = PodEdit(self._reader.pod)
        templates, warnings = self._fill(edit, self._grants)
        self._check_held(edit)
        edit.tolerations = self._rule.tolerations
        spec = self._reader.pod.spec
        selected = (spec.node_selector if spec else None) or {}
        edit.node_selector = {key: text for key, text in self._rule.node_selector.items() if key not in selected}
        self._mark(edit)
        operations = (*edit.resource_operations(), *edit.metadata_operations())
        if not operations:
            return self._untouched("it is as it should be")
        return Decision(
            outcome=Outcome.REWRITTEN,
            readings=self._readings,
            rule=self._rule,
            failures=self._choice.failures,
            grants=self._grants,
            operations=operations,
            templates=tuple(templates),
            warnings=self._warnings(warnings),
        )

    def _fill(self, edit: PodEdit, grants: tuple[Grant, ...]) -> tuple[list[Template], list[str]]:
        """Each backend writes the slices that are its own."""
        by_backend: dict[Backend, list[Grant]] = {}
        for given in grants:
            by_backend.setdefault(given.backend, []).append(given)
        slots = by_backend.get(Backend.EXTENDED, ())
        whole_as_slots = bool(slots) and asks_by_whole_gpus(self._reader)
        warnings = extended.write(slots, edit, self._context, self._target, whole_as_slots=whole_as_slots)
        gpu_manager.write(by_backend.get(Backend.GPU_MANAGER, ()), edit, self._rule)
        return dra.write(by_backend.get(Backend.DRA, ()), edit), warnings

    def _check_held(self, edit: PodEdit) -> None:
        limits.check(self._reader.places, self._readings, edit, self._rule, self._context)

    def _mark(self, edit: PodEdit) -> None:
        given: dict[str, str] = {}
        for each in self._grants:
            name, text = each.reading.place.name, each.slice.describe()
            given[name] = f"{given[name]} and {text}" if name in given else text
        dialects = {reading.dialect for reading in self._readings}
        backends = {str(each.backend) for each in self._grants}
        edit.labels[pod_annotations.SLICED] = "true"
        edit.annotations |= {
            pod_annotations.SLICE: pod_annotations.merge_slices(self._reader, self._served, given),
            pod_annotations.DIALECT: pod_annotations.merge_names(
                self._reader, pod_annotations.DIALECT, dialects, registry.NAMES
            ),
            pod_annotations.BACKEND: pod_annotations.merge_names(
                self._reader, pod_annotations.BACKEND, backends, list(Backend)
            ),
            pod_annotations.POLICY: self._rule.label,
        }

    def _warnings(self, more: list[str]) -> tuple[str, ...]:
        found = [warning for reading in self._readings for warning in reading.asked.warnings]
        found += [warning for given in self._grants for warning in given.warnings]
        found += more
        spec = self._reader.pod.spec
        scheduler = spec.scheduler_name if spec else None
        if scheduler not in _USUAL_SCHEDULERS:
            found.append(
                f"spec.schedulerName: {scheduler!r} will place this pod, and must understand what gpuslice made of it; "
                "leave it out for Kubernetes' own"
            )
        return tuple(dict.fromkeys(found))


def _warn_only(decision: Decision) -> Decision:
    """The same decision as warnings, without its patch."""
    if decision.denial is not None:
        told = f"this pod would be denied: {decision.denial.message}"
    elif decision.operations:
        slices = ", ".join(f"{each.reading.place.name}: {each.slice.describe()}" for each in decision.grants)
        told = f"this pod would be rewritten ({decision.backends}) for {slices}"
    else:
        return decision
    return msgspec.structs.replace(
        decision,
        outcome=Outcome.WARNED,
        operations=(),
        templates=(),
        denial=None,
        warnings=(f"policy {decision.rule.label} only warns; {told}", *decision.warnings),
    )
