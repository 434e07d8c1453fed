"""The fields of a configuration by their paths, as `webhook.port`: what flags, checks, references and views go by."""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from gpuslice.configuration import forms

if TYPE_CHECKING:
    from collections.abc import Mapping


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a configuration."""

    path: str
    #: The type, with what msgspec checks.
    type: Any
    #: The type alone.
    kind: Any
    form: forms.Form
    description: str
    default: Any
    optional: bool

    @property
    def is_mapping(self) -> bool:
        return get_origin(self.kind) is dict

    @property
    def is_list(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def entry(self) -> Any:  # noqa: ANN401 - a type
        """The type of a mapping's values."""
        return get_args(self.kind)[1]

    @property
    def choices(self) -> tuple[str, ...]:
        return forms.choices(self.kind)


@cache
def sections(section: type[msgspec.Struct]) -> Mapping[str, type[msgspec.Struct]]:
    """The sections in it, by their keys."""
    found = {each.encode_name: _plain(hint) for each, hint in _hints(section)}
    return {key: kind for key, kind in found.items() if _is_section(kind)}


@cache
def own(section: type[msgspec.Struct], prefix: str = "") -> Mapping[str, Field]:
    """The fields that are in it and in no section of it, by their keys."""
    return {
        each.encode_name: _field(f"{prefix}{each.encode_name}", hint, each)
        for each, hint in _hints(section)
        if not _is_section(_plain(hint))
    }


def everything(section: type[msgspec.Struct], prefix: str = "") -> dict[str, Field]:
    """All fields by their paths, in the order of the file."""
    found: dict[str, Field] = {}
    for each, _ in _hints(section):
        key = each.encode_name
        if key in sections(section):
            found |= everything(sections(section)[key], f"{prefix}{key}.")
        else:
            field = own(section, prefix)[key]
            found[field.path] = field
    return found


def at(section: type[msgspec.Struct], path: str) -> Field:
    """The field of that path. Raises KeyError if there is none."""
    *above, key = path.split(".")
    for name in above:
        section = sections(section)[name]
    return own(section, "".join(f"{name}." for name in above))[key]


@cache
def _hints(section: type[msgspec.Struct]) -> list[tuple[msgspec.structs.FieldInfo, Any]]:
    hints = get_type_hints(section, include_extras=True)
    return [(each, hints[each.name]) for each in msgspec.structs.fields(section)]


def _is_section(kind: Any) -> bool:  # noqa: ANN401 - a type
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _field(path: str, hint: Any, info: msgspec.structs.FieldInfo) -> Field:  # noqa: ANN401 - a type
    kind, metadata, optional = _unwrapped(hint)
    form = next((each for each in metadata if isinstance(each, forms.Form)), None)
    descriptions = [each.description for each in metadata if isinstance(each, msgspec.Meta) and each.description]
    default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
    return Field(
        path=path,
        type=hint,
        kind=kind,
        form=form or forms.TEXT,
        description=descriptions[-1] if descriptions else "",
        default=default,
        optional=optional,
    )


def _plain(hint: Any) -> Any:  # noqa: ANN401 - a type
    return _unwrapped(hint)[0]


def _unwrapped(hint: Any) -> tuple[Any, list[Any], bool]:  # noqa: ANN401 - a type
    """The type alone, what is annotated to it, and whether null is allowed."""
    metadata: list[Any] = []
    if get_origin(hint) is Annotated:
        metadata += hint.__metadata__
        hint = hint.__origin__
    optional = False
    if get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
        optional = True
        (hint,) = [each for each in get_args(hint) if each is not NoneType]
        inner, more, _ = _unwrapped(hint)
        return inner, [*more, *metadata], optional
    return hint, metadata, optional
