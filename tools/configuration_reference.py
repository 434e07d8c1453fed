"""Writes deploy/configuration.schema.json and the table of fields in docs/configuration.md, from the types.

`python -m tools.configuration_reference` writes both; a test compares them with what this would write.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.cli.commands import agent, controller, webhook
from gpuslice.configuration import fields
from gpuslice.configuration.dialect_section import WholeConfiguration

if TYPE_CHECKING:
    from gpuslice.configuration.fields import Field

ROOT: Final = Path(__file__).resolve().parent.parent
SCHEMA: Final = ROOT / "deploy" / "configuration.schema.json"
DOCUMENT: Final = ROOT / "docs" / "configuration.md"
_BEGIN: Final = "<!-- Made by `python -m tools.configuration_reference`. -->\n"
_END: Final = "<!-- The end of what is made. -->\n"


def schema() -> str:
    """As JSON Schema has it, strict as the file is."""
    made = msgspec.json.schema(WholeConfiguration)
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gpuslice's configuration", **made}
    made["$defs"]["Configuration"]["required"] = ["apiVersion", "kind"]
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"


def table() -> str:
    """A table for each section."""
    known = fields.everything(WholeConfiguration)
    flags = _flags()
    parts: dict[str, list[str]] = {}
    for path, field in known.items():
        section, _, key = path.rpartition(".")
        if section:
            parts.setdefault(section, []).append(_row(path, key, field, flags))
    return "\n".join(
        f"### `{section}`\n\n| Field | Default | Meaning | Flags |\n| --- | --- | --- | --- |\n{''.join(rows)}"
        for section, rows in parts.items()
    )


def document() -> str:
    before, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


def _row(path: str, key: str, field: Field, flags: dict[str, list[str]]) -> str:
    default = msgspec.to_builtins(field.default)
    shown = "" if default in (None, "", (), {}) else f"`{msgspec.json.encode(default).decode().strip(chr(34))}`"
    allowed = f" One of {', '.join(f'`{each}`' for each in field.choices)}." if field.choices else ""
    meaning = f"{field.description.partition('  [default')[0]}{allowed}"
    implied = field.description.partition("[default: ")[2].rstrip("]")
    return f"| `{key}` | {shown or implied} | {meaning} | {', '.join(flags.get(path, []))} |\n"


def _flags() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, module in (("webhook", webhook), ("controller", controller), ("agent", agent)):
        for flag in vars(module.command.callback)["configured"].flags:
            found.setdefault(flag.path, []).append(f"`{name} {flag.name}`")
    return found


def main() -> int:
    SCHEMA.write_text(schema())
    DOCUMENT.write_text(document())
    for path in (SCHEMA, DOCUMENT):
        print(f"==> Wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
