"""The section `dialects`: what the dialects declare that an installation can say about them (see dialects/dialect.py).

A type for msgspec is derived from the declarations, so that the schema, the reference and the checks have it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from gpuslice.configuration import forms
from gpuslice.configuration.schema import Configuration, Section
from gpuslice.dialects import registry
from gpuslice.model import devices
from gpuslice.model.policies import Backend
from gpuslice.model.settings import Setting, Settings, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX: Final = "dialects."
_WORD: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ANNOTATION: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?{_WORD}", re.ASCII)
#: What gpuslice itself reads and writes.
_OWN_DOMAIN: Final = "gpuslice.io/"
#: The names that dialects read and no setting changes.
_FIXED_NAMES: Final = frozenset(field.name for field in registry.fields_of_pods() if not field.setting)


def _annotation(field: str, name: str) -> str:
    if _ANNOTATION.fullmatch(name) is None or len(name.rpartition("/")[0]) > 253:
        key = re.sub("([A-Z])", r"-\1", field.rpartition(".")[2]).lower()
        raise SettingsError(f"{field}: {name!r} is not the name of an annotation; write for example example.com/{key}")
    if name in _FIXED_NAMES or name.startswith(_OWN_DOMAIN):
        raise SettingsError(f"{field}: {name!r} has a meaning in a dialect; choose another name")
    return name


#: The names that can be changed, and all that the dialects declare.
NAMES: Final = tuple(
    Setting(field.setting, field.name, _annotation, str, f"Another name for the pods' {field.name}.")
    for field in registry.fields_of_pods()
    if field.setting
)
SETTINGS: Final[tuple[Setting[Any], ...]] = (
    *(setting for dialect in registry.DIALECTS for setting in dialect.settings),
    *NAMES,
)
_KINDS: Final[dict[type, Any]] = {int: int, str: str, dict: dict[str, int]}
_FORMS: Final = {
    int: forms.NUMBER,
    str: forms.TEXT,
    dict: forms.Form("a mapping of numbers", "write for example {training: 4}"),
}


class SettingForm(forms.Form, frozen=True):
    """Checks as the dialect declares it."""

    setting: Setting[Any] | None = None


def _section(name: str, settings: tuple[Setting[Any], ...]) -> type[msgspec.Struct]:
    """The section of that name: a field for each setting in it, a section for each further dot in their names."""
    members: list[tuple[str, Any, Any]] = []
    inner: dict[str, list[Setting[Any]]] = {}
    for setting in settings:
        key, dot, _ = setting.name.removeprefix(f"{name}." if name else "").partition(".")
        if dot:
            inner.setdefault(key, []).append(setting)
        else:
            members.append((key, _type(setting), _default(setting)))
    for key, below in inner.items():
        made = _section(f"{name}.{key}" if name else key, tuple(below))
        members.append((key, made, msgspec.field(default_factory=made)))
    title = "".join(word.capitalize() for word in ["dialects", *name.split(".")])
    return msgspec.defstruct(title, members, bases=(Section,), frozen=True, kw_only=True)


def _type(setting: Setting[Any]) -> Any:  # noqa: ANN401 - a type
    form = _FORMS[setting.kind]
    checked = SettingForm(form.what, form.remedy, setting=setting)
    return Annotated[_KINDS[setting.kind], checked, forms.about(setting.description)]


def _default(setting: Setting[Any]) -> Any:  # noqa: ANN401 - as its setting has it
    if setting.kind is dict:
        return msgspec.field(default_factory=lambda: dict(setting.default))
    return setting.default


_Dialects: Final = _section("", SETTINGS)
_FACTORY: Final[Callable[[], msgspec.Struct]] = _Dialects

#: The whole file.
WholeConfiguration: Final[type[Configuration]] = msgspec.defstruct(  # type: ignore[assignment]  # of its base
    "Configuration",
    [("dialects", _Dialects, msgspec.field(default_factory=_FACTORY))],
    bases=(Configuration,),
    frozen=True,
    kw_only=True,
)


def settings_of(configuration: Configuration) -> Settings:
    """Names, presets and slots, as those need them who read pods."""
    gpus = configuration.gpus
    return Settings(
        whole_resource=gpus.whole_resource,
        shared_resource=gpus.shared_resource,
        slots_per_gpu=gpus.slots_per_gpu,
        other_resources=frozenset(gpus.other_resources),
        node_backend=None if gpus.backend == "auto" else Backend(gpus.backend),
        gpu_classes=frozenset(gpus.device_classes).union(devices.CLASS_SELECTORS),
        dialects=_of_dialects(configuration),
    )


def _of_dialects(configuration: Configuration) -> Mapping[str, Any]:
    """Those that are not their defaults, by their names."""
    section = getattr(configuration, "dialects", None)
    if section is None:
        return {}
    said = {setting.name: value_of(section, setting.name) for setting in SETTINGS}
    return {setting.name: said[setting.name] for setting in SETTINGS if said[setting.name] != setting.default}


def value_of(section: Any, name: str) -> Any:  # noqa: ANN401 - as the setting of that name has it
    for key in name.split("."):
        section = getattr(section, key)
    return section
