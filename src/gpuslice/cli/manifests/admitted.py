"""Manifests before and after admission: the files, the objects in them, and what was decided about each pod."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.admission import patching, workloads
from gpuslice.admission.review import decide_document
from gpuslice.cli.manifests import documents
from gpuslice.dialects import registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuslice.admission.context import Context
    from gpuslice.admission.decision import Decision
    from gpuslice.policies.subject import Subject


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod, or pod template, of an object."""

    title: str
    namespace: str
    template: Mapping[str, Any]
    decision: Decision
    subject: Subject


@dataclass(frozen=True, slots=True)
class Admitted:
    """One object. Most have no pods."""

    title: str
    before: Any
    after: Any
    pods: tuple[Pod, ...] = ()
    #: Why no cluster would take it, each with the place.
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def left_out(self) -> bool:
        return bool(self.problems) or any(pod.decision.denial is not None for pod in self.pods)

    @property
    def untouched(self) -> bool:
        return self.after is self.before and not self.left_out


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file, and the objects in it: several if it is a List."""

    text: str
    objects: tuple[Admitted, ...]

    @property
    def untouched(self) -> bool:
        return all(each.untouched for each in self.objects)


@dataclass(frozen=True, slots=True)
class File:
    """All of a file."""

    text: str
    documents: tuple[Document, ...]

    @property
    def untouched(self) -> bool:
        return all(each.untouched for each in self.documents)


class NewTemplates:
    """The claim templates that pods need and nothing before them needed."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def of(self, admitted: Admitted) -> Iterator[dict[str, Any]]:
        for pod in admitted.pods:
            for template in pod.decision.templates:
                if (pod.namespace, template.name) not in self._known:
                    self._known.add((pod.namespace, template.name))
                    yield template.document(pod.namespace)


def admit_file(text: str, name: str, default_namespace: str, context: Context) -> File:
    return File(
        text,
        tuple(
            Document(
                document.text,
                tuple(admit_object(item, default_namespace, context) for item in _objects(document)),
            )
            for document in documents.read(text, name)
        ),
    )


def _objects(document: documents.Document) -> Iterator[Any]:
    documents.check_object(document.value, document.place)
    for item in workloads.items_of(document.value):
        documents.check_object(item, document.place)
        yield item


def title(item: Any, default_namespace: str) -> str:  # noqa: ANN401 - from a file
    """What people call it: kind, namespace and name."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    metadata = metadata if isinstance(metadata, dict) else {}
    kind = item.get("kind", "object") if isinstance(item, dict) else "object"
    name = metadata.get("name") or metadata.get("generateName") or "(without a name)"
    return f"{kind} {metadata.get('namespace') or default_namespace}/{name}"


def admit_object(item: Any, default_namespace: str, context: Context) -> Admitted:  # noqa: ANN401 - from a file
    named = title(item, default_namespace)
    after = item
    pods: list[Pod] = []
    problems: list[str] = []
    for path in workloads.templates(item):
        place = f"{named}, {workloads.show(path)}" if path else named
        template = workloads.at(item, path)
        namespace = workloads.namespace_of(item, path) or default_namespace
        try:
            decision, subject = decide_document(msgspec.json.encode(template), namespace, context)
        except (ValueError, TypeError, RecursionError) as error:
            problems += [f"{place}: {complaint}" for complaint in workloads.unquoted(template) or (error,)]
            continue
        if decision.operations:
            after = workloads.replaced(after, path, patching.apply(template, list(decision.operations)))
        pods.append(Pod(place, namespace, template, decision, subject))
    warnings = tuple(
        f"{named}: {workloads.show(path)} asks for a GPU, but is in no pod template: "
        "what becomes of it is decided when its pods are made"
        for path in workloads.requests_elsewhere(item, context.settings)
    )
    return Admitted(named, item, after, tuple(pods), tuple(problems), (*warnings, *_misplaced(item, named, context)))


def _misplaced(item: Any, named: str, context: Context) -> Iterator[str]:  # noqa: ANN401 - from a file
    """Annotations that are for pods, on an object that makes pods: the pods do not have them."""
    paths = workloads.templates(item)
    metadata = item.get("metadata") if paths and () not in paths else None
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    read = {*registry.names_of_pod_fields(context.settings)[0], *registry.RESOURCES_AS_ANNOTATIONS}
    for name in annotations if isinstance(annotations, dict) else ():
        if name in read:
            yield (
                f"{named}: metadata.annotations[{name}]: is read on pods, and the pods do not have it; write it into "
                f"{workloads.show((*paths[0], 'metadata', 'annotations'))}"
            )
