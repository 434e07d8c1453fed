"""Kubernetes manifests as files hold them: many documents, and what is not changed stays as it was written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from gpuslice.model.errors import GpusliceError
from gpuslice.system.kubernetes_yaml import KubernetesLoader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SEPARATOR: Final = re.compile(r"^---(?:\s*$|\s*#.*$|(?=\s))", re.MULTILINE)


class ManifestError(GpusliceError):
    """Raised when a file is not YAML or JSON, or holds something else than manifests. It quotes nothing of the file."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: its text, what it says, and where it begins."""

    text: str
    value: Any
    place: str


def read(text: str, name: str) -> Iterator[Document]:
    """The documents of a file, in order. Empty ones are left out."""
    line = 1
    for part in _split(text):
        try:
            value = yaml.load(part, KubernetesLoader)  # noqa: S506 - derived from the safe loader
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{name}:{line + mark.line}" if mark else name
            raise ManifestError(f"{where}: {getattr(error, 'problem', None) or error}") from None
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"{name}:{line}: {error}") from None
        if value is not None:
            yield Document(part.strip("\n") + "\n", value, f"{name}:{line}")
        line += part.count("\n")


def check_object(value: Any, place: str) -> None:  # noqa: ANN401 - from a file
    """Refuses what no API server would take for an object: a file that is something else is not to be repeated."""
    if not isinstance(value, dict):
        raise ManifestError(f"{place}: is no manifest: write a mapping with apiVersion and kind")
    missing = [key for key in ("apiVersion", "kind") if not isinstance(value.get(key), str) or not value[key]]
    if missing:
        raise ManifestError(f"{place}: is no manifest: {' and '.join(missing)} must be there, as a text")


def decode(content: bytes, name: str) -> str:
    """The text of a file, with its ends of lines as they are."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{name}: is not text in UTF-8: {error.reason} at byte {error.start}") from None


def join(texts: Iterable[str]) -> str:
    """As one file. Each text is kept, but for a missing end of the last line before another."""
    joined = ""
    for text in texts:
        if joined and not joined.endswith("\n"):
            joined += "\n"
        joined += f"---\n{text}" if joined and not _SEPARATOR.match(text) else text
    return joined


def write(value: object) -> str:
    """A document, in the order in which its keys are."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000))


def _split(text: str) -> Iterator[str]:
    start = 0
    for separator in _SEPARATOR.finditer(text):
        yield text[start : separator.start()]
        start = separator.end()
    yield text[start:]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as people do."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
