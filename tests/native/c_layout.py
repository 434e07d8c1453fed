"""What the C compiler says of structures and constants that Python mirrors."""

from __future__ import annotations

import ctypes
import json
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


def expressions(
    constants: Mapping[str, int], structures: Mapping[str, type[ctypes.Structure]]
) -> Iterator[tuple[str, int]]:
    """Every number that must agree: what C calls it, and what Python says it is."""
    yield from constants.items()
    for name, structure in structures.items():
        yield f"sizeof(struct {name})", ctypes.sizeof(structure)
        for field, _ in structure._fields_:  # type: ignore[misc]
            descriptor = getattr(structure, field)
            yield f"offsetof(struct {name}, {field})", descriptor.offset
            yield f"sizeof(((struct {name} *)0)->{field})", descriptor.size


def told_by_compiler(header: Path, asked: Iterable[str], folder: Path) -> dict[str, int]:
    """The values of these expressions, by a program that is made in the folder."""
    lines = [
        f'printf("%s\\"%s\\": %llu", separator, "{expression}", (unsigned long long)({expression})); separator = ",";'
        for expression in asked
    ]
    head = [f'#include "{header.name}"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    program = "\n".join([*head, '    const char *separator = "{";', *lines, '    puts("}");', "}"])
    (folder / "asking.c").write_text(program)
    command: list[str | Path] = ["cc", "-std=gnu11", f"-I{header.parent}", "-o", folder / "asking", folder / "asking.c"]
    subprocess.run(command, check=True, capture_output=True)
    output = subprocess.run([folder / "asking"], check=True, capture_output=True, text=True).stdout
    answers: dict[str, int] = json.loads(output)
    return answers
