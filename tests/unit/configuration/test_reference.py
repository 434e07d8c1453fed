"""The JSON Schema and the page about the configuration say what the types do."""

from __future__ import annotations

import json
import re

from gpuslice.configuration import fields
from gpuslice.configuration.dialect_section import WholeConfiguration
from tools import configuration_reference

HOW = "run: .venv/bin/python -m tools.configuration_reference"


def test_the_schema_and_the_table_are_current() -> None:
    assert configuration_reference.SCHEMA.read_text() == configuration_reference.schema(), HOW
    assert configuration_reference.DOCUMENT.read_text() == configuration_reference.document(), HOW


def test_every_field_is_on_the_page() -> None:
    found: set[str] = set()
    section = ""
    for line in configuration_reference.DOCUMENT.read_text().splitlines():
        if heading := re.fullmatch(r"### `(.+)`", line):
            section = heading[1]
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.add(f"{section}.{row[1]}")
    assert found == {*fields.everything(WholeConfiguration)} - {"apiVersion", "kind"}


def test_the_schema_refuses_what_is_not_known_in_every_section() -> None:
    schema = json.loads(configuration_reference.SCHEMA.read_text())
    assert len(schema["$defs"]) >= 10
    for name, section in schema["$defs"].items():
        assert section.get("additionalProperties") is False or "enum" in section, name
