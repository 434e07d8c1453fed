"""Decides about one pod: reads what it asks, finds the rule, grants slices, and writes the patch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.admission import pod_annotations
from gpuslice.admission.advice import misspelt_names, slips
from gpuslice.admission.backends import dra, extended, gpu_manager
from gpuslice.admission.claims import claim_templates
from gpuslice.admission.decision import NO_DIALECT, NO_GPU, Decision, Denial, Outcome
from gpuslice.admission.granting import Grant, NotAllowedError, check_together, grant
from gpuslice.admission.patching import PodEdit
from gpuslice.admission.quota_charges import asked_resources
from gpuslice.admission.restrictions import exemptions, held_claims, limits
from gpuslice.admission.restrictions.named_gpus import HeldNames
from gpuslice.admission.restrictions.other_claims import OtherClaims
from gpuslice.admission.schedulers import NamedScheduler
from gpuslice.dialects import fields, registry
from gpuslice.dialects.pod_values import Reader
from gpuslice.dialects.recognizing import asks_by_whole_gpus, read_pod, two_ways
from gpuslice.model.policies import Backend, Participation
from gpuslice.model.requests import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.admission.claims.claim_templates import Template
    from gpuslice.admission.context import Context
    from gpuslice.dialects.recognizing import Reading
    from gpuslice.model.pods import Container, Place, Pod
    from gpuslice.policies.rule_set import Choice
    from gpuslice.policies.subject import Subject

#: No node runs so many in one pod, and looking at each takes time from other pods.
_MOST_CONTAINERS: Final = 512


def decide(pod: Pod, subject: Subject, context: Context) -> Decision:
    """What is to happen to the pod. Never raises for anything that a pod can say."""
    if not registry.may_ask(pod, context.settings):
        return NO_GPU
    return decide_under(context.policies.choose(subject), pod, subject.namespace, context)


def decide_under(choice: Choice, pod: Pod, namespace: str, context: Context) -> Decision:
    """The same, for a pod that may ask for a GPU, when the rule is known."""
    if choice.rule.participation is Participation.OPT_OUT:
        return _left_alone(choice)
    decision = _too_many_containers(pod, choice) or _Deciding(pod, choice, namespace, context).run()
    return _warn_only(decision) if choice.rule.warn_only else decision


def decide_added(pod: Pod, added: Mapping[str, Container], subject: Subject, context: Context) -> Decision:
    """Whether containers, given by their fields, may be added to a stored pod (`kubectl debug`). Without this question
    the author of a pod with a slice adds a moment later what he may not have in it.
    """
    if not registry.may_ask(pod, context.settings):
        return NO_GPU
    choice = context.policies.choose(subject)
    if choice.rule.participation is Participation.OPT_OUT:
        return _left_alone(choice)
    decision = _Deciding(pod, choice, subject.namespace, context).run_added(added)
    return _warn_only(decision) if choice.rule.warn_only else decision


def _left_alone(choice: Choice) -> Decision:
    return Decision(
        outcome=Outcome.UNTOUCHED,
        reason="its policy leaves such pods alone",
        rule=choice.rule,
        failures=choice.failures,
    )


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

    def __init__(self, pod: Pod, choice: Choice, namespace: str, context: Context) -> None:
        self._choice = choice
        self._rule = choice.rule
        self._context = context
        self._reader = Reader(
            pod,
            registry.settings_under(self._rule, context.settings),
            opted_in=self._rule.participation is Participation.OPT_IN,
        )
        self._target = self._rule.target_resource or context.settings.shared_resource
        self._scheduler = NamedScheduler(pod, self._rule)
        self._other_claims = OtherClaims(pod.spec, namespace, context)
        self._served = pod_annotations.Served(self._reader, self._target)
        self._reader.forget(self._served.fields())
        self._readings: tuple[Reading, ...] = ()
        self._grants: tuple[Grant, ...] = ()

    def run(self) -> Decision:
        try:
            slips.refuse(self._reader, self._context)
            self._readings = tuple(read_pod(self._reader))
            if not self._readings:
                return self._leave()
            self._refuse_claims_beside()
            self._grants = tuple(
                grant(reading, request, self._rule, self._context)
                for reading in self._readings
                for request in reading.asked.requests
            )
            check_together(self._grants, self._rule)
            if self._scheduler.serves_itself(self._readings):
                return self._leave(self._grants)
            self._check_kept()
            return self._write()
        except (RequestError, NotAllowedError) as error:
            return self._denied(error)

    def run_added(self, added: Mapping[str, Container]) -> Decision:
        """Of a pod that is stored, and containers by their fields that are added to it."""
        try:
            if self._is_held_to_exemptions(PodEdit(self._reader.pod)) or self._asks():
                for field, container in added.items():
                    exemptions.check_container(field, container, self._rule)
        except NotAllowedError as error:
            return self._denied(error)
        return self._untouched("only new pods are rewritten")

    def _asks(self) -> bool:
        """Whether a dialect is left in the pod, which other software serves; or one that no webhook has seen."""
        try:
            return bool(read_pod(self._reader))
        except RequestError:
            return True

    def _denied(self, error: RequestError | NotAllowedError) -> Decision:
        return Decision(
            outcome=Outcome.DENIED,
            denial=Denial(message=str(error), malformed=isinstance(error, RequestError)),
            readings=self._readings,
            grants=self._grants,
            rule=self._rule,
            failures=self._choice.failures,
        )

    def _check_kept(self) -> None:
        for reading in self._readings:
            for unkept in reading.asked.unkept:
                raise NotAllowedError(unkept)

    def _untouched(self, reason: str) -> Decision:
        return Decision(
            outcome=Outcome.UNTOUCHED,
            reason=reason,
            readings=self._readings,
            grants=self._grants,
            rule=self._rule,
            failures=self._choice.failures,
            warnings=tuple(slips.warnings(self._reader)),
        )

    def _refuse_claims_beside(self) -> None:
        """A container that asks in a dialect and names a claim of a GPU asks in two ways."""
        for reading in self._readings:
            for index, claim in enumerate(reading.place.claims):
                other = self._other_claims.by_name.get(claim.name)
                if other is None or self._other_claims.gpus(other):
                    field = f"{reading.place.field}.resources.claims[{index}]"
                    what = f"the claim {claim.name!r}"
                    # Not malformed: what the claim is for, the pod alone does not say.
                    raise NotAllowedError(str(two_ways(reading.place, reading.dialect, reading.signs[0], what, field)))

    def _leave(self, left: tuple[Grant, ...] = ()) -> Decision:
        """A pod that gets no slice here: it has one, or its own scheduler serves it (`left`), or it asks for whole
        GPUs. The rule places it all the same.
        """
        edit = PodEdit(self._reader.pod)
        self._check_held(edit, left)
        served = any(map(self._served, self._reader.places))
        if not (served or left):
            misspelt_names.refuse(self._reader)
        if served or left or self._is_held_to_exemptions(edit):
            exemptions.check(self._reader, edit, self._rule)
        taken_over = self._take_over(edit, served=served) if not left else []
        if self._rule.places and (left or served or self._holds_gpus(edit)):
            self._place(edit)
        if operations := tuple(edit.resource_operations()) if self._reader.places else ():
            return Decision(
                outcome=Outcome.REWRITTEN,
                reason="Kubernetes' own scheduler places it" if taken_over else "its policy says how it is placed",
                readings=self._readings,
                rule=self._rule,
                failures=self._choice.failures,
                operations=operations,
                warnings=(*taken_over, *slips.warnings(self._reader)),
            )
        if left:
            return self._untouched("its scheduler serves it")
        untouched = self._untouched("it has its slice already" if served else NO_DIALECT)
        choices = () if served else slips.warnings_of_choices(self._reader)
        told = (*untouched.warnings, *choices, *self._warnings_of_whole_gpus(), *self._warnings_of_scheduler(served))
        return msgspec.structs.replace(untouched, warnings=told)

    def _take_over(self, edit: PodEdit, *, served: bool) -> list[str]:
        """What the author is told if another scheduler than the pod's places it."""
        if served:
            return self._scheduler.take_over(edit)
        offered = self._context.offered
        only_by_claims = offered is not None and Backend.DRA in self._context.node_backends
        if not only_by_claims or self._context.settings.whole_resource in (offered or ()) or not self._whole_asked:
            return []
        return self._scheduler.take_over_whole_gpus(edit)

    @property
    def _whole_asked(self) -> Place | None:
        """The first container that asks for whole GPUs."""
        whole = self._context.settings.whole_resource
        return next((place for place in self._reader.places if fields.asked(place, (whole,))), None)

    def _warnings_of_scheduler(self, served: bool) -> tuple[str, ...]:  # noqa: FBT001 - told by its name
        told = "" if served or not self._whole_asked else self._scheduler.warning_of_whole_gpus
        return (told,) if told else ()

    def _warnings_of_whole_gpus(self) -> tuple[str, ...]:
        """Whole GPUs are counted by a device plugin or, where nodes offer claims, by the scheduler."""
        offered, whole = self._context.offered, self._context.settings.whole_resource
        if offered is None or whole in offered or Backend.DRA in self._context.node_backends:
            return ()
        asking = self._whole_asked
        if asking is None:
            return ()
        told = (
            f"{fields.resource_field(asking, whole)}: no node offers whole GPUs at the moment, and the pod waits until "
            "one does; ask for a part, as gpuslice.io/memory, or have nodes offer GPUs whole (gpus.policies)"
        )
        return (told,)

    def _is_held_to_exemptions(self, edit: PodEdit) -> bool:
        """By what the pod holds: the annotations that admission writes are its author's to leave out."""
        slots = sorted({self._context.settings.shared_resource, *self._context.policies.target_resources})
        if held_claims.claims_of_pod(edit) or any(fields.asked(place, slots) for place in self._reader.places):
            return True
        return self._rule.has_maximum and self._holds_gpus(edit)

    def _holds_gpus(self, edit: PodEdit) -> bool:
        places, named = self._reader.places, HeldNames(edit, (), (), self._context)
        return bool(held_claims.claims_of_pod(edit)) or any(
            named.names(place) or fields.asked(place, registry.CLASS_RESOURCES) for place in places
        )

    def _place(self, edit: PodEdit) -> None:
        edit.tolerations = self._rule.tolerations
        spec = self._reader.pod.spec
        selected = (spec.node_selector if spec else None) or {}
        edit.node_selector = {key: text for key, text in self._rule.node_selector.items() if key not in selected}

    def _write(self) -> Decision:
        edit = PodEdit(self._reader.pod)
        templates, warnings = self._fill(edit, self._grants)
        left = tuple(given for given in self._grants if given.backend is Backend.GPU_MANAGER)
        self._check_held(edit, left)
        exemptions.check(self._reader, edit, self._rule)
        if len(left) < len(self._grants):
            warnings += self._scheduler.take_over(edit)
        self._place(edit)
        self._mark(edit, templates)
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

    def _check_held(self, edit: PodEdit, left: tuple[Grant, ...]) -> None:
        if self._rule.limits:
            named = HeldNames(edit, self._readings, left, self._context)
            limits.check(self._reader.places, named, self._other_claims, edit, self._rule, self._context)

    def _mark(self, edit: PodEdit, templates: list[Template]) -> None:
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
        if templates:
            earlier = self._reader.annotations.get(pod_annotations.RECIPES, "")
            needed = held_claims.claims_of_pod(edit).values()
            edit.annotations[pod_annotations.RECIPES] = claim_templates.write_recipes(templates, earlier, needed)
        if asked := asked_resources.merge(self._reader.pod, edit):
            edit.annotations[asked_resources.ANNOTATION] = asked

    def _warnings(self, more: list[str]) -> tuple[str, ...]:
        found = [warning for reading in self._readings for warning in reading.asked.warnings]
        found += [warning for given in self._grants for warning in given.warnings]
        found += more
        found += misspelt_names.warnings(self._reader)
        return tuple(dict.fromkeys(found))


def _warn_only(decision: Decision) -> Decision:
    """The same decision as warnings, without its patch."""
    if decision.denial is not None:
        told = f"this pod would be denied: {decision.denial.message}"
    elif decision.operations and not decision.grants:
        told = f"this pod would be rewritten, because {decision.reason}"
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
