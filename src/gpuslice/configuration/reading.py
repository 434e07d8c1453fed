"""The text of a configuration file as a document: mappings, lists and values, not yet checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from gpuslice.configuration.problems import ConfigurationError, Problem
from gpuslice.system.kubernetes_yaml import KubernetesLoader, key_text

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

Document = dict[str, Any]


class _StrictLoader(KubernetesLoader):
    """A field that is said twice is a mistake: only one of them would count."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - as PyYAML declares it
        seen: set[str] = set()
        for key, _ in node.value:
            name = key_text(self.construct_object(key))
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is there twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_file(path: Path) -> Document:
    """The document in the file."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise _refused(str(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _refused(str(path), f"is not text in UTF-8: {error.reason} at byte {error.start}") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Document:
    """The document in a text."""
    try:
        found = yaml.load(text, _StrictLoader)  # noqa: S506 - derived from the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise _refused(where, f"is not YAML: {problem}") from None
    except (ValueError, RecursionError) as error:
        raise _refused(name, f"is not YAML: {error}") from None
    if not isinstance(found, dict):
        raise _refused(name, "holds no configuration; begin with apiVersion: config.gpuslice.io/v1alpha1")
    return found


def _refused(source: str, text: str) -> ConfigurationError:
    return ConfigurationError([Problem(source, "", text)])
