"""Where a workload's pods are: the templates in it, for reading manifests without a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEMPLATE: Final = ("spec", "template")
#: (API group, kind) -> where the pod is in it.
_PLACES: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("", "Pod"): (),
    ("", "PodTemplate"): ("template",),
    ("", "ReplicationController"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", *_TEMPLATE),
    ("batch", "Job"): _TEMPLATE,
}


def template_path(document: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - anything can be in a file
    """The way to the pod in the object, or None if it has none."""
    if not isinstance(document, dict):
        return None
    version, kind = document.get("apiVersion"), document.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return None
    path = _PLACES.get((version.rpartition("/")[0], kind))
    return path if path is not None and isinstance(_at(document, path), dict) else None


def template_of(document: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The pod at the end of the way."""
    found = _at(document, path)
    assert isinstance(found, dict), "template_path has looked"
    return found


def with_template(document: dict[str, Any], path: tuple[str, ...], template: dict[str, Any]) -> dict[str, Any]:
    """The same object with another pod in it."""
    if not path:
        return template
    first, *rest = path
    return document | {first: with_template(document[first], tuple(rest), template)}


def items_of(document: Any) -> Iterator[Any]:  # noqa: ANN401 - anything can be in a file
    """The objects in a List, which may hold lists; else the document itself."""
    if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from items_of(item)
    else:
        yield document


def _at(document: Any, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - anything can be in a file
    for step in path:
        document = document.get(step) if isinstance(document, dict) else None
    return document
