"""What an installation configures about the ways of asking for a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from gpuslice.model import devices
from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuslice.model.policies import Backend

_Value = TypeVar("_Value")

#: As many as a SlicePolicy may say.
_MOST_SLOTS: Final = 1_000_000
_MOST_PRESETS: Final = 64
_PRESET: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


class SettingsError(GpusliceError):
    """Raised when a setting cannot be what its author meant. Names the field."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting(Generic[_Value]):
    """Something that an installation can say about one dialect."""

    #: In the configuration's section `dialects`, as `castslice.defaultSlots`.
    name: str
    default: _Value
    #: From the name and what the configuration says to the value. Complains with a SettingsError that begins with it.
    check: Callable[[str, Any], _Value]
    #: What the configuration says: int, str or dict.
    kind: type = int
    #: What it is for, in a sentence.
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names and presets. The defaults are those that the dialects' own users know."""

    shared_resource: str = devices.SHARED_RESOURCE
    whole_resource: str = devices.WHOLE_RESOURCE
    slots_per_gpu: int = devices.SLOTS_PER_GPU
    #: Resources in a domain of GPUs that are none.
    other_resources: frozenset[str] = frozenset(devices.OTHER_RESOURCES)
    #: How the nodes are told to offer GPUs. None: by claims where the cluster serves them, else in slots.
    node_backend: Backend | None = None
    #: The device classes whose devices are GPUs.
    gpu_classes: frozenset[str] = frozenset(devices.GPU_CLASSES)
    #: Values of the dialects' settings, by name; a setting that is missing has its default.
    dialects: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def get(self, setting: Setting[_Value]) -> _Value:
        found: _Value = self.dialects.get(setting.name, setting.default)
        return found

    def having(self, setting: Setting[_Value], value: _Value) -> Settings:
        """The same with another value."""
        return replace(self, dialects=MappingProxyType({**self.dialects, setting.name: value}))


#: What a cluster has whose operator changed nothing.
DEFAULT_SETTINGS: Final = Settings()


def slots(name: str, value: object, most: int = _MOST_SLOTS) -> int:
    """A number of slots."""
    return number("a number of slots", most)(name, value)


def number(what: str, most: int) -> Callable[[str, object], int]:
    """A whole number from 1 on, which is `what`."""

    def check(name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise SettingsError(f"{name}: {value!r} is not {what}; write 1 to {most}")
        return value

    return check


def one_of(*words: str) -> Callable[[str, str], str]:
    """One of a few words."""

    def check(name: str, value: str) -> str:
        if value not in words:
            raise SettingsError(f"{name}: {value!r} is not known; write {' or '.join(words)}")
        return value

    return check


def presets(what: str, example: str) -> Callable[[str, dict[str, object]], Mapping[str, int]]:
    """Numbers of slots by name: each name is `what`, as `example` is."""

    def check(name: str, values: dict[str, object]) -> Mapping[str, int]:
        if len(values) > _MOST_PRESETS:
            raise SettingsError(f"{name}: has {len(values)}; keep at most {_MOST_PRESETS}")
        for key in values:
            if _PRESET.fullmatch(key) is None:
                raise SettingsError(
                    f"{name}: {key!r} cannot be {what}; write up to 63 letters, digits, '-', '_' and '.', "
                    f"a letter or digit first and last, as {example}"
                )
        return MappingProxyType({key: slots(f"{name}.{key}", value) for key, value in values.items()})

    return check
