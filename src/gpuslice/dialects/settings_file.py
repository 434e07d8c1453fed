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
from types import MappingProxyType
from typing import Final

import msgspec

from gpuslice.dialects import hami, kai, resource_names, vcuda
from gpuslice.model.errors import GpusliceError
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings

#: As many as `gpuslice agent --slots-per-gpu` takes.
_MOST_SLOTS_PER_GPU: Final = 1000
#: As many as a SlicePolicy may say.
_MOST_SLOTS: Final = 1_000_000
_MOST_PRESETS: Final = 64

_WORD: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_PRESET: Final = re.compile(_WORD, re.ASCII)
_ANNOTATION: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?{_WORD}", re.ASCII)
#: What gpuslice itself reads and writes.
_OWN_DOMAIN: Final = "gpuslice.io/"
_OTHERS: Final = (*kai.ANNOTATIONS, *hami.ANNOTATIONS, *vcuda.ANNOTATIONS)


class SettingsError(GpusliceError):
    """Raised when a settings file cannot be what its author meant. Names the file and the field."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file as it is written, and what it says. Without a text it is none."""

    text: str
    settings: Settings


NO_FILE: Final = SettingsFile("", DEFAULT_SETTINGS)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A part of the file. A key that we do not know is a typing error, and refused."""


class _Annotations(_Table, frozen=True):
    optimize: str = DEFAULT_SETTINGS.castslice_optimize
    slice_ratio: str = DEFAULT_SETTINGS.castslice_ratio
    workload_type: str = DEFAULT_SETTINGS.castslice_workload


class _Castslice(_Table, frozen=True):
    default_slots: int = DEFAULT_SETTINGS.castslice_default_slots
    presets: dict[str, object] = msgspec.field(default_factory=lambda: dict(DEFAULT_SETTINGS.castslice_presets))
    annotations: _Annotations = _Annotations()


class _File(_Table, frozen=True):
    whole_resource: str = DEFAULT_SETTINGS.whole_resource
    shared_resource: str = DEFAULT_SETTINGS.shared_resource
    slots_per_gpu: int = DEFAULT_SETTINGS.slots_per_gpu
    castslice: _Castslice = _Castslice()


_TABLES: Final[dict[str, type[_Table]]] = {
    "": _File,
    "castslice": _Castslice,
    "castslice.annotations": _Annotations,
}
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


def _settings(found: _File) -> Settings:
    castslice = found.castslice
    annotations = castslice.annotations
    if len(castslice.presets) > _MOST_PRESETS:
        raise SettingsError(f"castslice.presets: has {len(castslice.presets)}; keep at most {_MOST_PRESETS}")
    settings = Settings(
        whole_resource=_resource("whole-resource", found.whole_resource),
        shared_resource=_resource("shared-resource", found.shared_resource),
        slots_per_gpu=_number("slots-per-gpu", found.slots_per_gpu, _MOST_SLOTS_PER_GPU),
        castslice_default_slots=_number("castslice.default-slots", castslice.default_slots, _MOST_SLOTS),
        castslice_presets=MappingProxyType({_preset(key): _slots(key, n) for key, n in castslice.presets.items()}),
        castslice_optimize=_annotation("optimize", annotations.optimize),
        castslice_ratio=_annotation("slice-ratio", annotations.slice_ratio),
        castslice_workload=_annotation("workload-type", annotations.workload_type),
    )
    _check_apart({"whole-resource": settings.whole_resource, "shared-resource": settings.shared_resource})
    _check_apart(
        {
            "castslice.annotations.optimize": settings.castslice_optimize,
            "castslice.annotations.slice-ratio": settings.castslice_ratio,
            "castslice.annotations.workload-type": settings.castslice_workload,
        }
    )
    return settings


def _number(field: str, value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise SettingsError(f"{field}: {value!r} is not a number of slots; write 1 to {most}")
    return value


def _preset(name: str) -> str:
    if _PRESET.fullmatch(name) is None:
        raise SettingsError(
            f"castslice.presets: {name!r} cannot be a workload type; write up to 63 letters, digits, '-', '_' and '.', "
            "a letter or digit first and last, as training"
        )
    return name


def _slots(preset: str, value: object) -> int:
    return _number(f"castslice.presets.{preset}", value, _MOST_SLOTS)


def _resource(field: str, name: str) -> str:
    try:
        return resource_names.check(name, example=getattr(DEFAULT_SETTINGS, field.replace("-", "_")))
    except ValueError as error:
        raise SettingsError(f"{field}: {error}") from None


def _annotation(key: str, name: str) -> str:
    field = f"castslice.annotations.{key}"
    if _ANNOTATION.fullmatch(name) is None or len(name.rpartition("/")[0]) > 253:
        raise SettingsError(f"{field}: {name!r} is not the name of an annotation; write for example example.com/{key}")
    if name in _OTHERS or name.startswith(_OWN_DOMAIN):
        raise SettingsError(f"{field}: {name!r} has a meaning in a dialect; choose another name")
    return name


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
