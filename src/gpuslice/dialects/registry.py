"""All dialects, what they declare together, and whether a pod may speak one at all."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import known
from gpuslice.dialects.dialect import Dialect, WholeGpus
from gpuslice.model import devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuslice.dialects.dialect import PodField
    from gpuslice.model.pods import Pod, PodClaim
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

#: The dialects whose signs are resources, by the name of the resource and by how it begins.
BY_RESOURCE: Final = {resource.name: dialect for dialect in DIALECTS for resource in dialect.signs}
BY_FAMILY: Final = {dialect.family.prefix: dialect for dialect in DIALECTS if dialect.family is not None}
SIGNS: Final = {dialect.name: tuple(resource.name for resource in dialect.signs) for dialect in DIALECTS}
#: The dialects that ask by the resource that counts whole GPUs.
BY_WHOLE_GPUS: Final = tuple(dialect for dialect in DIALECTS if dialect.whole_gpus is WholeGpus.ASK)
WITH_SETTINGS_OF_RULES: Final = tuple(dialect for dialect in DIALECTS if dialect.settings_under is not None)


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
    """Every annotation and label that some dialect looks at."""
    return tuple(field for dialect in DIALECTS for field in dialect.pod_fields)


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
    if asks_by_fields(pod.annotations, pod.labels if _ASKING_LABELS else {}):
        return True
    spec = pod.spec
    if spec is None:
        return False
    if spec.resource_claims and _names_claims(spec.resource_claims):
        return True
    configured = (settings.whole_resource, settings.shared_resource)
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            resources = container.resources
            if resources is None:
                continue
            for names in (resources.limits, resources.requests):
                for name in names or ():
                    if name.startswith(RESOURCE_PREFIXES) or name in configured:
                        return True
    return False


def _names_claims(claims: Iterable[PodClaim]) -> bool:
    """No dialect, but ways to hold a slice: a claim that exists, as one that was made for another pod, or a claim of a
    template that the namespace has because of other pods.
    """
    return any(
        claim.resource_claim_name is not None
        or (claim.resource_claim_template_name or "").startswith(devices.CLAIM_PREFIX)
        for claim in claims
    )
