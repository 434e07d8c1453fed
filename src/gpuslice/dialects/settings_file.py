"""The settings of an installation, from one small TOML file. Whatever it does not say is as the dialects' own users
know it; a file that cannot be what its author meant is refused.

    whole-resource = "nvidia.com/gpu"           # what whole GPUs are called
    shared-resource = "nvidia.com/gpu-shared"   # what slots are called
    slots-per-gpu = 10

    [castslice]
    default-slots = 1                           # where the pod does not say

    [castslice.presets]                         # slots by workload type, instead of the usual ones
    training = 4
    inference = 2

    [castslice.annotations]
    optimize = "castops.io/optimize"
    slice-ratio = "castops.io/slice-ratio"
    workload-type = "castops.io/workload-type"
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gpuslice.dialects import registry, resource_names
from gpuslice.model.settings import DEFAULT_SETTINGS, Setting, Settings, SettingsError, slots

__all__ = ["NO_FILE", "SettingsError", "SettingsFile", "parse"]

#: As many as `gpuslice agent --slots-per-gpu` takes.
_MOST_SLOTS_PER_GPU: Final = 1000

_WORD: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ANNOTATION: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?{_WORD}", re.ASCII)
#: What gpuslice itself reads and writes.
_OWN_DOMAIN: Final = "gpuslice.io/"
#: The names that dialects read and no setting changes.
_FIXED_NAMES: Final = frozenset(field.name for field in registry.fields_of_pods() if not field.setting)


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file as it is written, and what it says. Without a text it is none."""

    text: str
    settings: Settings


NO_FILE: Final = SettingsFile("", DEFAULT_SETTINGS)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A part of the file. A key that we do not know is a typing error, and refused."""


def _annotation(field: str, name: str) -> str:
    if _ANNOTATION.fullmatch(name) is None or len(name.rpartition("/")[0]) > 253:
        key = field.rpartition(".")[2]
        raise SettingsError(f"{field}: {name!r} is not the name of an annotation; write for example example.com/{key}")
    if name in _FIXED_NAMES or name.startswith(_OWN_DOMAIN):
        raise SettingsError(f"{field}: {name!r} has a meaning in a dialect; choose another name")
    return name


#: The names that can be changed, and all that the dialects declare.
_NAMES: Final = tuple(
    Setting(field.setting, field.name, _annotation, kind=str) for field in registry.fields_of_pods() if field.setting
)
_SETTINGS: Final = (*(setting for dialect in registry.DIALECTS for setting in dialect.settings), *_NAMES)
_TYPES: Final[dict[type, Any]] = {int: int, str: str, dict: dict[str, object]}
_TABLES: Final[dict[str, type[msgspec.Struct]]] = {}


def _table(name: str, settings: tuple[Setting[Any], ...], more: list[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    """The table of that name: a key for each setting in it, and a table for each further dot in their names."""
    keys: list[tuple[str, Any, Any]] = []
    tables: dict[str, list[Setting[Any]]] = {}
    for setting in settings:
        key, dot, _ = setting.name.removeprefix(f"{name}." if name else "").partition(".")
        if dot:
            tables.setdefault(key, []).append(setting)
        else:
            keys.append((key.replace("-", "_"), _TYPES[setting.kind], _default(setting)))
    for key, inner in tables.items():
        table = _table(f"{name}.{key}" if name else key, tuple(inner), [])
        keys.append((key.replace("-", "_"), table, table()))
    made = msgspec.defstruct(name or "file", [*more, *keys], bases=(_Table,), frozen=True)
    _TABLES[name] = made
    return made


def _default(setting: Setting[Any]) -> Any:  # noqa: ANN401 - as its setting has it
    if setting.kind is dict:
        return msgspec.field(default_factory=lambda: dict(setting.default))
    return setting.default


_GENERAL: Final[list[tuple[str, Any, Any]]] = [
    ("whole_resource", str, DEFAULT_SETTINGS.whole_resource),
    ("shared_resource", str, DEFAULT_SETTINGS.shared_resource),
    ("slots_per_gpu", int, DEFAULT_SETTINGS.slots_per_gpu),
]
_File: Final = _table("", _SETTINGS, _GENERAL)
_REMEDIES: Final = {"int": "write a whole number, as 4", "str": 'write a text, as "..."'}


def parse(text: str, name: str) -> SettingsFile:
    """What the file of that name says."""
    try:
        found = msgspec.convert(tomllib.loads(text), _File)
        return SettingsFile(text, _settings(found))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{name}: is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise SettingsError(f"{name}: {_plainly(error)}") from None
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from None


def _settings(found: Any) -> Settings:  # noqa: ANN401 - a struct that is made when the program starts
    said = {setting.name: setting.check(setting.name, _said(found, setting.name)) for setting in _SETTINGS}
    settings = Settings(
        whole_resource=_resource("whole-resource", found.whole_resource),
        shared_resource=_resource("shared-resource", found.shared_resource),
        slots_per_gpu=slots("slots-per-gpu", found.slots_per_gpu, _MOST_SLOTS_PER_GPU),
        dialects={setting.name: said[setting.name] for setting in _SETTINGS if said[setting.name] != setting.default},
    )
    _check_apart({"whole-resource": settings.whole_resource, "shared-resource": settings.shared_resource})
    _check_apart({setting.name: said[setting.name] for setting in _NAMES})
    return settings


def _said(table: Any, name: str) -> Any:  # noqa: ANN401 - as the setting of that name has it
    for key in name.split("."):
        table = getattr(table, key.replace("-", "_"))
    return table


def _resource(field: str, name: str) -> str:
    try:
        return resource_names.check(name, example=getattr(DEFAULT_SETTINGS, field.replace("-", "_")))
    except ValueError as error:
        raise SettingsError(f"{field}: {error}") from None


def _check_apart(names: dict[str, str]) -> None:
    seen: dict[str, str] = {}
    for field, name in names.items():
        if name in seen:
            raise SettingsError(f"{field}: {name!r} is also {seen[name]}; choose another name for one of them")
        seen[name] = field


def _plainly(error: msgspec.ValidationError) -> str:
    """Where, what and what to do, instead of what and where."""
    reason, _, where = str(error).partition(" - at `")
    field = where.removesuffix("`").removeprefix("$").removeprefix(".")
    if unknown := re.search("unknown field `(.*)`", reason):
        keys = ", ".join(sorted(_TABLES[field].__struct_encode_fields__))
        return f"{f'{field}.' if field else ''}{unknown[1]}: is not known; write one of {keys}"
    wanted, got = re.findall("`([^`]*)`", reason)
    return f"{field}: is of type {got}; {_REMEDIES.get(wanted, f'write a table, as [{field}]')}"
