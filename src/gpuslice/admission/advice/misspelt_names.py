"""Annotations and labels of our own domains that do not exist: a slip of the pen, which would otherwise go unnoticed.

A pod that meant to ask by one, and asks in no other way, would run without its slice, and is refused. All else runs as
it would without that name, and a warning tells.
"""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuslice.admission import pod_annotations
from gpuslice.admission.granting import NotAllowedError
from gpuslice.dialects import registry
from gpuslice.dialects.known import native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.dialects.pod_values import Reader
    from gpuslice.model.settings import Settings

#: To find what was meant takes a moment, which no pod's author gets hundreds of times.
_MOST_TOLD: Final = 3
_RESOURCES: Final = tuple(resource.name for resource in native.DIALECT.resources)
#: What asks by itself, so that a pod without it has no slice.
_ASKING: Final = frozenset((*_RESOURCES, *(field.name for field in native.DIALECT.asking)))


class _Misspelt(NamedTuple):
    #: `annotations` or `labels`.
    kind: str
    name: str
    #: What exists and is called almost so.
    meant: str | None


def refuse(reader: Reader) -> None:
    """Raises NotAllowedError for a pod that asks for nothing but by a name that does not exist."""
    for misspelt in _found(reader):
        if misspelt.meant in _ASKING:
            raise NotAllowedError(
                f"metadata.{misspelt.kind}[{misspelt.name}]: there is no such name, and the pod would run without its "
                f"slice; {_remedy(misspelt, reader.settings)}"
            )


def warnings(reader: Reader) -> Iterator[str]:
    for misspelt in _found(reader):
        yield (
            f"metadata.{misspelt.kind}[{misspelt.name}]: there is no such name, and it changes nothing; "
            f"{_remedy(misspelt, reader.settings)}"
        )


def _found(reader: Reader) -> Iterator[_Misspelt]:
    pod = reader.pod
    for kind, texts in (("annotations", pod.annotations), ("labels", pod.labels)):
        names = registry.of_own_domains(texts)
        if names:
            known = _known(kind, reader.settings)
            unknown = (name for name in names if name not in known)
            yield from (_Misspelt(kind, name, _meant(name, reader.settings)) for name in islice(unknown, _MOST_TOLD))


def _known(kind: str, settings: Settings) -> frozenset[str]:
    annotations, labels = registry.names_of_pod_fields(settings)
    return frozenset(
        (*annotations, *pod_annotations.NAMES) if kind == "annotations" else (*labels, pod_annotations.SLICED)
    )


def _annotations(settings: Settings) -> list[str]:
    """Those of our own that people write."""
    return registry.of_own_domains(registry.names_of_pod_fields(settings)[0])


def _meant(name: str, settings: Settings) -> str | None:
    """By what is after the domain, in which all are alike."""
    by_end = {_end(known): known for known in _of_domain_of(name, [*_RESOURCES, *_annotations(settings)])}
    close = difflib.get_close_matches(_end(name), by_end, n=1)
    return by_end[close[0]] if close else None


def _of_domain_of(name: str, known: list[str]) -> list[str]:
    """All of them, where the operator has renamed those of the domain."""
    domain = name.partition("/")[0]
    return [each for each in known if each.partition("/")[0] == domain] or known


def _end(name: str) -> str:
    return name.partition("/")[2]


def _remedy(misspelt: _Misspelt, settings: Settings) -> str:
    if misspelt.meant is None:
        known = _of_domain_of(misspelt.name, _annotations(settings))
        return f"there are the annotations {', '.join(sorted(known))}"
    if misspelt.meant in _RESOURCES:
        return f"you meant {misspelt.meant}, which is a resource: write it into resources.limits of the container"
    if misspelt.kind == "labels":
        return f"you meant the annotation {misspelt.meant}"
    return f"you meant {misspelt.meant}"
