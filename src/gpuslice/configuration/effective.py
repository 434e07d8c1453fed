"""The configuration in force: what flags say, else the file, else the defaults; and where each value comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.configuration import checking, consistency, fields
from gpuslice.configuration.problems import ConfigurationError, Problem
from gpuslice.configuration.schema import API_VERSION, KIND, Configuration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuslice.configuration.reading import Document
    from gpuslice.model.settings import Settings

_HEADER = {"apiVersion": API_VERSION, "kind": KIND}


class Layer(msgspec.Struct, frozen=True):
    """A document, and who wrote it: a file's name, for example. Later layers override earlier ones."""

    source: str
    document: Document


class Override(msgspec.Struct, frozen=True):
    """A single value that counts more than every layer. Entries of a mapping are put beside those that are there."""

    source: str
    path: str
    value: Any


class Effective(msgspec.Struct, frozen=True):
    """A configuration, and where it comes from."""

    configuration: Configuration
    #: By path; entries of mappings have paths of their own. What is not here is the default.
    sources: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: What was said, as a document, with no default in it.
    said: Document = msgspec.field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """What those need who read pods."""
        from gpuslice.configuration.dialect_section import settings_of

        return settings_of(self.configuration)


def load(layers: Sequence[Layer] = (), overrides: Sequence[Override] = (), *, dialects: bool = True) -> Effective:
    """Puts them together. Raises ConfigurationError with all problems. Without `dialects` none are loaded unless a
    layer has something to say about them.
    """
    whole = _type(dialects=dialects or any("dialects" in layer.document for layer in layers))
    problems = [
        problem for layer in layers for problem in checking.problems_in(layer.document, whole, layer.source)
    ] + [
        problem
        for override in overrides
        for problem in checking.problems_of_value(fields.at(whole, override.path), override.value, override.source)
    ]
    if problems:
        raise ConfigurationError(problems)
    said: Document = {}
    sources: dict[str, str] = {}
    for layer in layers:
        body = {key: value for key, value in layer.document.items() if key not in _HEADER}
        said = merged(said, body)
        sources.update(dict.fromkeys(_paths(body), layer.source))
    for override in overrides:
        body = _nested(override.path, override.value)
        said = merged(said, body)
        sources.update(dict.fromkeys(_paths(body), override.source))
    configuration = msgspec.convert(said, whole)
    contradictions = list(consistency.problems_of(configuration, sources))
    if contradictions:
        raise ConfigurationError([_told(problem) for problem in contradictions])
    return Effective(configuration, sources, said)


def document(said: Document) -> Document:
    """As a file has it."""
    return {**_HEADER, **said}


def merged(below: Document, above: Document) -> Document:
    """Both; where they differ, what is above. An empty section says nothing."""
    made = dict(below)
    for key, value in above.items():
        lower = made.get(key)
        if isinstance(value, Mapping):
            made[key] = merged(dict(lower or {}), dict(value))
        elif value is not None:
            made[key] = value
    return made


def _type(*, dialects: bool) -> type[Configuration]:
    if not dialects:
        return Configuration
    from gpuslice.configuration.dialect_section import WholeConfiguration

    return WholeConfiguration


def _told(problem: Problem) -> Problem:
    return problem if problem.source else Problem("configuration", problem.path, problem.text)


def _nested(path: str, value: object) -> Document:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def _paths(body: Document, prefix: str = "") -> Iterator[str]:
    for key, value in body.items():
        if isinstance(value, Mapping):
            yield f"{prefix}{key}"
            yield from _paths(dict(value), f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}"
