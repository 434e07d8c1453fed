"""A configuration for people and programs: every value, with where it comes from. What is shown can be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from gpuslice.configuration import fields
from gpuslice.configuration.schema import API_VERSION, KIND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.configuration.effective import Effective

DEFAULT: Final = "default"
_ENDLESS: Final = 1 << 30
_WIDEST: Final = 60


def as_yaml(effective: Effective) -> str:
    """With a comment at each value that says where it comes from."""
    lines = list(_lines(effective))
    column = min(_WIDEST, max(len(text) for text, _ in lines))
    # A name of a file may hold whatever it likes; a comment ends with its line.
    return "".join(
        f"{text.ljust(column)}  # {source if source.isprintable() else ascii(source)}\n" if source else f"{text}\n"
        for text, source in lines
    )


def as_json(effective: Effective) -> str:
    """The configuration, and the sources by path."""
    shown = {
        "configuration": msgspec.to_builtins(effective.configuration),
        "sources": {
            path: source_of(effective, path)
            for path in fields.everything(type(effective.configuration))
            if path not in ("apiVersion", "kind")
        }
        | {path: source for path, source in effective.sources.items() if _is_entry(effective, path)},
    }
    return msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()


def source_of(effective: Effective, path: str) -> str:
    return effective.sources.get(path, DEFAULT)


def _is_entry(effective: Effective, path: str) -> bool:
    parent = path.rpartition(".")[0]
    known = fields.everything(type(effective.configuration))
    return parent in known and known[parent].is_mapping


def _lines(effective: Effective) -> Iterator[tuple[str, str]]:
    values: dict[str, Any] = msgspec.to_builtins(effective.configuration)
    known = fields.everything(type(effective.configuration))

    def section(found: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
        indent = "  " * depth
        for key, value in found.items():
            path = f"{prefix}{key}"
            if path in known and not (known[path].is_mapping and value):
                yield f"{indent}{_scalar(key)}: {_scalar(value)}", source_of(effective, path)
            elif path in known:
                yield f"{indent}{_scalar(key)}:", ""
                for name, each in value.items():
                    source = source_of(effective, f"{path}.{name}")
                    yield f"{indent}  {_scalar(name)}: {_scalar(each)}", source
            else:
                yield f"{indent}{_scalar(key)}:", ""
                yield from section(value, f"{path}.", depth + 1)

    yield f"apiVersion: {API_VERSION}", ""
    yield f"kind: {KIND}", ""
    body = {key: value for key, value in values.items() if key not in ("apiVersion", "kind")}
    yield from section(body, "", 0)


def _scalar(value: object) -> str:
    """On one line, whatever is in it."""
    text = str(yaml.safe_dump(value, default_flow_style=True, width=_ENDLESS, allow_unicode=True))
    text = text.removesuffix("...\n").strip("\n")
    if not text.isprintable():  # YAML has other line breaks than \n
        quoted = yaml.safe_dump(value, default_flow_style=True, default_style='"', width=_ENDLESS)
        text = str(quoted).removesuffix("...\n").strip()
    return text
