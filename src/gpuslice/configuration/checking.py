"""What is wrong in a document: fields that are not known, values of another form. Every problem is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.configuration import fields, forms
from gpuslice.configuration.problems import Problem
from gpuslice.configuration.schema import API_VERSION, KIND
from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuslice.configuration.fields import Field

_HEADER = {"apiVersion": API_VERSION, "kind": KIND}


def problems_in(document: Mapping[str, Any], whole: type[msgspec.Struct], source: str) -> Iterator[Problem]:
    """Of a file."""
    for key, wanted in _HEADER.items():
        if key not in document:
            yield Problem(source, key, f"is missing; write {wanted}")
        elif document[key] != wanted:
            yield Problem(source, key, f"{_shown(document[key])} is not known; write {wanted}")
    body = {key: value for key, value in document.items() if key not in _HEADER}
    yield from _problems_in_section(body, whole, "", source, tuple(fields.everything(whole)))


def problems_of_value(field: Field, value: object, source: str) -> Iterator[Problem]:
    """Of one value, wherever it comes from."""
    if field.optional and value is None:
        return
    if field.is_mapping and not isinstance(value, Mapping):
        yield Problem(source, field.path, f"is {_type_of(value)}; write a mapping, as {{name: value}}")
    elif (setting := getattr(field.form, "setting", None)) is not None:
        yield from _problems_of_setting(field, setting, value, source)
    elif isinstance(value, Mapping) and field.is_mapping:
        for key, each in value.items():
            yield from _problems_of_entry(field, key, each, source)
    elif complaint := _complaint(field.type, field.form, value, field.choices):
        yield Problem(source, field.path, complaint)


def _problems_in_section(
    document: Mapping[str, Any], section: type[msgspec.Struct], prefix: str, source: str, known: tuple[str, ...]
) -> Iterator[Problem]:
    sections, own = fields.sections(section), fields.own(section, prefix)
    for key, value in document.items():
        path = f"{prefix}{key}"
        if key in own:
            yield from problems_of_value(own[key], value, source)
        elif key not in sections:
            yield Problem(source, path, f"is not known; {_suggestion(key, [*own, *sections], prefix, known)}")
        elif isinstance(value, Mapping):
            yield from _problems_in_section(value, sections[key], f"{path}.", source, known)
        elif value is not None:
            below = ", ".join([*fields.own(sections[key]), *fields.sections(sections[key])])
            yield Problem(source, path, f"is {_type_of(value)}; write a mapping with {below}")


def _suggestion(key: str, siblings: Iterable[str], prefix: str, known: tuple[str, ...]) -> str:
    """What its author probably meant: a field beside it, or one of that name elsewhere."""
    import difflib

    siblings = [each for each in siblings if each not in _HEADER]
    by_likeness = {_plain(each): each for each in siblings}
    if close := difflib.get_close_matches(_plain(key), by_likeness, n=1, cutoff=0.75):
        return f"did you mean {prefix}{by_likeness[close[0]]}?"
    elsewhere = [path for path in known if _plain(path.rpartition(".")[2]) == _plain(key)]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"write one of {', '.join(sorted(siblings))}"


def _plain(name: str) -> str:
    """However it is written: slotsPerGpu, slots-per-gpu, slots_per_GPU."""
    return name.replace("-", "").replace("_", "").lower()


def _problems_of_entry(field: Field, key: str, value: object, source: str) -> Iterator[Problem]:
    if complaint := _complaint(field.entry, forms.TEXT, value, forms.choices(field.entry)):
        yield Problem(source, f"{field.path}.{key}", complaint)


def _problems_of_setting(field: Field, setting: Any, value: object, source: str) -> Iterator[Problem]:  # noqa: ANN401 - of any type
    """As its dialect checks it. Each entry of a mapping is looked at alone, so that all problems are found."""
    if isinstance(value, Mapping) and field.is_mapping:
        alone = [problem for key, each in value.items() for problem in _refusals(field, setting, {key: each}, source)]
        yield from alone or _refusals(field, setting, value, source)
    elif complaint := _complaint(field.type, field.form, value):
        yield Problem(source, field.path, complaint)
    else:
        yield from _refusals(field, setting, value, source)


def _refusals(field: Field, setting: Any, value: object, source: str) -> list[Problem]:  # noqa: ANN401 - of any type
    try:
        setting.check(field.path, value)
    except GpusliceError as error:
        path, _, text = str(error).partition(": ")
        return [Problem(source, path, text)]
    return []


def _complaint(kind: Any, form: forms.Form, value: object, choices: tuple[str, ...] = ()) -> str:  # noqa: ANN401 - a type
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        if choices:
            import difflib

            meant = difflib.get_close_matches(str(value).lower(), choices, n=1)
            return f"{_shown(value)} is none of {', '.join(choices)}{f'; did you mean {meant[0]}?' if meant else ''}"
        return f"{_shown(value)} is not {form.what}; {form.remedy}"
    try:
        form.check(converted)
    except ValueError as error:
        return str(error)
    return ""


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _type_of(value: object) -> str:
    names = {
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a mapping",
    }
    return "empty" if value is None else names.get(type(value), type(value).__name__)
