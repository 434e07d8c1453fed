"""All dialects, what they declare together, and whether a pod may speak one at all."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import common_fields, known
from gpuslice.dialects.dialect import Dialect, WholeGpus
from gpuslice.model import devices
from gpuslice.model.values import written_names

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuslice.dialects.dialect import PodField
    from gpuslice.model.pods import Pod, Resources
    from gpuslice.model.policies import Backend, Rule
    from gpuslice.model.settings import Settings


def _found() -> tuple[Dialect, ...]:
    """Of every module in `known/`, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(known.__path__))
    dialects = tuple(importlib.import_module(f"{known.__name__}.{name}").DIALECT for name in names)
    _refuse_what_two_declare(dialects)
    return dialects


def _refuse_what_two_declare(dialects: tuple[Dialect, ...]) -> None:
    """One sign shows one dialect."""
    owners: dict[str, str] = {}
    for dialect in dialects:
        signs = [*(resource.name for resource in dialect.signs), *(field.name for field in dialect.asking)]
        for name in signs:
            if owners.setdefault(name, dialect.name) != dialect.name:
                raise ValueError(f"{name} is declared by {owners[name]} and by {dialect.name}")


DIALECTS: Final = _found()
BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}
NAMES: Final = tuple(BY_NAME)

#: Kubernetes takes the name of a device class for a resource, and makes the claim itself: for all of a GPU, as nothing
#: less is said. That is no dialect, but a policy has to know of it.
CLASS_RESOURCES: Final = tuple(f"deviceclass.resource.kubernetes.io/{name}" for name in devices.CLASS_SELECTORS)

#: The signs of a request, whatever the dialect: how resources begin, and the pod's fields that need no resource.
RESOURCE_PREFIXES: Final = (
    *dict.fromkeys(prefix for dialect in DIALECTS for prefix in dialect.prefixes),
    *CLASS_RESOURCES,
)
ASKING: Final = {dialect.name: dialect.asking for dialect in DIALECTS if dialect.asking}
_ASKING_ANNOTATIONS, _ASKING_LABELS = (
    frozenset(field.name for fields in ASKING.values() for field in fields if field.kind == kind)
    for kind in ("annotations", "labels")
)

#: The dialects whose signs are resources, by the name of the resource and by its family.
BY_RESOURCE: Final = {resource.name: dialect for dialect in DIALECTS for resource in dialect.signs}
BY_FAMILY: Final = {dialect.family: dialect for dialect in DIALECTS if dialect.family is not None}
_FAMILY_PREFIXES: Final = tuple(family.prefix for family in BY_FAMILY)
SIGNS: Final = {dialect.name: tuple(resource.name for resource in dialect.signs) for dialect in DIALECTS}
#: The dialects that ask by the resource that counts whole GPUs.
BY_WHOLE_GPUS: Final = tuple(dialect for dialect in DIALECTS if dialect.whole_gpus is WholeGpus.ASK)
#: The schedulers of peers, by name, and the dialects that each of them serves.
SCHEDULERS: Final = {scheduler.name: scheduler for dialect in DIALECTS for scheduler in dialect.schedulers}
SERVED_BY_SCHEDULER: Final = {
    name: frozenset(dialect.name for dialect in DIALECTS if name in {each.name for each in dialect.schedulers})
    for name in SCHEDULERS
}
#: The gates of peers, by name, and the dialects that the controller of each serves.
GATES: Final = {gate.name: gate for dialect in DIALECTS for gate in dialect.gates}
SERVED_BEHIND_GATE: Final = {
    name: frozenset(dialect.name for dialect in DIALECTS if name in {each.name for each in dialect.gates})
    for name in GATES
}
WITH_SETTINGS_OF_RULES: Final = tuple(dialect for dialect in DIALECTS if dialect.settings_under is not None)

#: Resources as annotations ask for nothing, and are looked at to say so.
RESOURCES_AS_ANNOTATIONS: Final = frozenset(
    resource.name for dialect in DIALECTS for resource in dialect.signs
).difference(field.name for dialect in DIALECTS for field in dialect.pod_fields)


#: Annotations and labels that begin so are meant for us, whether they exist or not; of those of the first kind, a pod
#: that asks for nothing else may have meant to ask by them.
ASKING_DOMAINS: Final = BY_NAME["native"].prefixes
OWN_DOMAINS: Final = (
    *ASKING_DOMAINS,
    *dict.fromkeys(
        f"{field.name.partition('/')[0]}/" for dialect in BY_WHOLE_GPUS for field in dialect.fields if field.setting
    ),
)
#: With more annotations, or labels, a pod is not searched for names that do not exist: that would take others' time.
MOST_SEARCHED: Final = 256


def of_own_domains(names: Collection[str]) -> list[str]:
    """Those that are meant for us."""
    return [name for name in names if name.startswith(OWN_DOMAINS)] if len(names) <= MOST_SEARCHED else []


def by_family(resource: str) -> Dialect | None:
    """The dialect in whose family the resource is."""
    if resource.startswith(_FAMILY_PREFIXES):  # few do, and this is quick
        for family, dialect in BY_FAMILY.items():
            if family.has(resource):
                return dialect
    return None


def read_by(backend: Backend) -> tuple[str, ...]:
    """The dialects that a backend which is other software reads itself."""
    return tuple(dialect.name for dialect in DIALECTS if dialect.also_read_by is backend)


def settings_under(rule: Rule, settings: Settings) -> Settings:
    """The settings as the rule changes them."""
    for dialect in WITH_SETTINGS_OF_RULES:
        assert dialect.settings_under is not None
        settings = dialect.settings_under(settings, rule)
    return settings


def fields_of_pods() -> tuple[PodField[object], ...]:
    """Every annotation and label that some dialect looks at, once."""
    own = {(field.kind, field.name): field for dialect in DIALECTS for field in dialect.pod_fields}
    return (*own.values(), *common_fields.FIELDS)


def names_of_pod_fields(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of all those annotations and of all those labels."""
    annotations, labels = (
        tuple(dict.fromkeys(field.name_in(settings) for field in fields_of_pods() if field.kind == kind))
        for kind in ("annotations", "labels")
    )
    return annotations, labels


def asks_by_fields(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether a pod has an annotation or a label that asks by itself."""
    return not (_ASKING_ANNOTATIONS.isdisjoint(annotations) and _ASKING_LABELS.isdisjoint(labels))


def may_ask(pod: Pod, settings: Settings) -> bool:
    """Whether anything in the pod could be a request. Cheap, because most pods of a cluster end here."""
    annotations = pod.annotations
    said = asks_by_fields(annotations, pod.labels if _ASKING_LABELS else {})
    if said or not RESOURCES_AS_ANNOTATIONS.isdisjoint(annotations):
        return True
    spec = pod.spec
    if spec is None:
        return False
    if spec.resource_claims:  # no dialect, but a way to hold a GPU: which, only the claims themselves can tell
        return True
    if spec.resources is not None and _names_gpu(spec.resources, settings):
        return True
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            if container.resources is not None and _names_gpu(container.resources, settings):
                return True
    return any(
        name.startswith(ASKING_DOMAINS) and name not in written_names.ALL
        for texts in (annotations, pod.labels)
        if len(texts) <= MOST_SEARCHED
        for name in texts
    )


def _names_gpu(resources: Resources, settings: Settings) -> bool:
    configured = (settings.whole_resource, settings.shared_resource)
    for names in (resources.limits, resources.requests):
        for name in names or ():
            if name.startswith(RESOURCE_PREFIXES) or name in configured:
                return True
    return False


def is_sign(resource: str, settings: Settings) -> bool:
    """Whether a resource may be a GPU, or a part of one."""
    return resource.startswith(RESOURCE_PREFIXES) or resource in (settings.whole_resource, settings.shared_resource)
