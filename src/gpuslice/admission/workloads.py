"""Where a workload's pods are: the templates in it, for reading manifests without a cluster.

Any operator can define a kind that makes pods, so templates are known by their shape and not by the kind they are in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.dialects import registry
from gpuslice.model.pods import Pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuslice.model.settings import Settings

#: From an object to something in it: names of fields, and positions in lists.
Path = tuple[str | int, ...]

_LIST: Final = "List"
#: They show pods, and make none: a schema, what was applied before, and patterns of what is allowed.
_NOT_WORKLOADS: Final = ("CustomResourceDefinition", "ControllerRevision", "Policy")
#: What is said about an object and not by it; a status may repeat the templates.
_ABOUT: Final = ("metadata", "status")
#: Fields that hold resources of containers; the second is of Kubeflow's TrainJob.
_RESOURCES: Final = ("resources", "resourcesPerNode")


def templates(document: Any) -> tuple[Path, ...]:  # noqa: ANN401 - anything can be in a file
    """The ways to all pods and pod templates in the object. Whatever says that it is a pod is taken at its word."""
    if _is_pod(document):
        return ((),)
    return _search(document, _is_template) if _may_make_pods(document) else ()


def requests_elsewhere(document: Any, settings: Settings) -> tuple[Path, ...]:  # noqa: ANN401 - anything can be in a file
    """The ways to resources that ask for a GPU outside of all templates: the pods they are for are made elsewhere."""
    if _is_pod(document) or not _may_make_pods(document):
        return ()

    def found(node: dict[str, Any]) -> bool:
        return _is_template(node) or _asking_field(node, settings) is not None

    ways = ((way, at(document, way)) for way in _search(document, found))
    asking = ((way, _asking_field(node, settings)) for way, node in ways if not _is_template(node))
    return tuple((*way, field) for way, field in asking if field is not None)


def at(document: Any, path: Path) -> Any:  # noqa: ANN401 - anything can be in a file
    """What is at the end of the way."""
    for step in path:
        document = document[step]
    return document


def replaced(document: Any, path: Path, value: object) -> Any:  # noqa: ANN401 - anything can be in a file
    """The same object with something else at the end of the way. Nothing that it shares with others is changed."""
    if not path:
        return value
    first, *rest = path
    copy = document.copy()
    copy[first] = replaced(document[first], tuple(rest), value)
    return copy


def namespace_of(document: Any, path: Path) -> str:  # noqa: ANN401 - anything can be in a file
    """Where what is at the end of the way will be, if the object says so, or one inside it that is on the way."""
    found = ""
    for length in range(len(path) + 1):
        on_the_way = at(document, path[:length])
        metadata = on_the_way.get("metadata") if _kind(on_the_way) else None
        if isinstance(metadata, dict):
            found = str(metadata.get("namespace") or found)
    return found


def show(path: Path) -> str:
    """As a message names it: `spec.workerGroupSpecs[0].template`."""
    shown = "".join(f"[{step}]" if isinstance(step, int) or "." in step else f".{step}" for step in path)
    return shown.removeprefix(".")


def unquoted(template: Any) -> list[str]:  # noqa: ANN401 - anything can be in a file
    """Complaints about labels and such that are numbers or booleans: YAML makes them so where there are no quotes."""
    complaints = []
    for way in (("metadata", "annotations"), ("metadata", "labels"), ("spec", "nodeSelector")):
        texts = template
        for step in way:
            texts = texts.get(step) if isinstance(texts, dict) else None
        for name, value in texts.items() if isinstance(texts, dict) else ():
            if isinstance(value, bool | int | float):
                written = msgspec.json.encode(value).decode()
                kind = "boolean" if isinstance(value, bool) else "number"
                # Of 1.10 nothing is left but 1.1, which is not what was meant.
                remedy = "quote it" if isinstance(value, float) else f'quote it: "{written}"'
                complaints.append(f"{'.'.join(way)}[{name}]: is the {kind} {written}, not a text; {remedy}")
    return complaints


def items_of(document: Any) -> Iterator[Any]:  # noqa: ANN401 - anything can be in a file
    """The objects in a List, or PodList, which may hold lists; else the document itself."""
    kind = _kind(document)
    if not kind.endswith(_LIST) or not isinstance(document.get("items"), list):
        yield document
    elif kind == _LIST:
        for item in document["items"]:
            yield from items_of(item)
    elif _has_name(document):
        yield document  # no list has a name: it is a thing whose kind ends like one
    else:
        # The API server does not repeat in each item what the list says of all.
        of_all = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix(_LIST)}
        yield from (of_all | item if isinstance(item, dict) else item for item in document["items"])


def _search(document: Any, wanted: Callable[[dict[str, Any]], bool]) -> tuple[Path, ...]:  # noqa: ANN401 - anything can be in a file
    """The ways to all that is wanted, from the outside in: what is inside such a thing is part of it.

    A YAML alias is the same object in several places, and aliases of aliases are very many: each is looked at once.
    """
    known: dict[int, tuple[Path, ...]] = {}

    def search(node: Any) -> tuple[Path, ...]:  # noqa: ANN401 - anything can be in a file
        if id(node) in known:
            return known[id(node)]
        if isinstance(node, dict):
            if wanted(node):
                return ((),)
            inner: list[tuple[str | int, Any]] = [item for item in node.items() if item[0] not in _ABOUT]
        elif isinstance(node, list):
            inner = list(enumerate(node))
        else:
            return ()
        known[id(node)] = tuple((step, *way) for step, value in inner for way in search(value))
        return known[id(node)]

    return search(document)


def _is_template(node: dict[str, Any]) -> bool:
    """Whether it has named containers as a pod has them, and does not say that it is something else."""
    spec = node.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(containers, list) or not containers:
        return False
    if (node.get("apiVersion", "v1"), node.get("kind", "Pod")) != ("v1", "Pod"):
        return False
    return all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in containers)


def _asking_field(node: dict[str, Any], settings: Settings) -> str | None:
    """By which field it asks for a GPU, if it is something like a container that does."""
    return next((field for field in _RESOURCES if _asks(node.get(field), settings)), None)


def _asks(resources: object, settings: Settings) -> bool:
    if not isinstance(resources, dict):
        return False
    try:
        pod = msgspec.convert({"spec": {"containers": [{"resources": resources}]}}, Pod)
    except msgspec.ValidationError:
        return False
    return registry.may_ask(pod, settings)


def _is_pod(document: Any) -> bool:  # noqa: ANN401 - anything can be in a file
    return _kind(document) == "Pod" and document.get("apiVersion") == "v1"


def _may_make_pods(document: Any) -> bool:  # noqa: ANN401 - anything can be in a file
    kind = _kind(document)
    return bool(kind) and isinstance(document.get("apiVersion"), str) and not kind.endswith(_NOT_WORKLOADS)


def _kind(document: Any) -> str:  # noqa: ANN401 - anything can be in a file
    kind = document.get("kind") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) else ""


def _has_name(document: dict[str, Any]) -> bool:
    metadata = document.get("metadata")
    return isinstance(metadata, dict) and "name" in metadata
