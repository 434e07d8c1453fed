"""Python's mirror of the machine file and the C compiler's word on it."""

from __future__ import annotations

import ctypes
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.simulator import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

SIMULATOR = Path(__file__).resolve().parents[2] / "native" / "simulator"

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "sim_placement": layout.Placement,
    "sim_profile": layout.Profile,
    "sim_gpu_spec": layout.GpuSpec,
    "sim_description": layout.Description,
}
CONSTANTS = {
    "SIM_MAGIC": layout.MAGIC,
    "SIM_VERSION": layout.VERSION,
    "SIM_MAX_GPUS": layout.MAX_GPUS,
    "SIM_MAX_PROFILES": layout.MAX_PROFILES,
    "SIM_MAX_PLACEMENTS": layout.MAX_PLACEMENTS,
    "sizeof(struct sim_machine)": layout.MACHINE_BYTES,
}


def _expressions() -> Iterator[tuple[str, int]]:
    """Every number that must agree: what C calls it, and what Python says it is."""
    yield from CONSTANTS.items()
    yield "offsetof(struct sim_machine, description)", 0
    for name, structure in STRUCTURES.items():
        yield f"sizeof(struct {name})", ctypes.sizeof(structure)
        for field, _ in structure._fields_:  # type: ignore[misc]
            descriptor = getattr(structure, field)
            yield f"offsetof(struct {name}, {field})", descriptor.offset
            yield f"sizeof(((struct {name} *)0)->{field})", descriptor.size


@pytest.fixture(scope="module")
def told_by_compiler(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    lines = [
        f'printf("%s\\"%s\\": %llu", separator, "{expression}", (unsigned long long)({expression})); separator = ",";'
        for expression, _ in _expressions()
    ]
    program = "\n".join(
        [
            '#include "machine.h"',
            "#include <stdio.h>",
            "int main(void) {",
            '    const char *separator = "{";',
            *lines,
            '    puts("}");',
            "}",
        ]
    )
    folder = tmp_path_factory.mktemp("layout")
    (folder / "layout.c").write_text(program)
    subprocess.run(
        ["cc", "-std=gnu11", f"-I{SIMULATOR}", "-o", folder / "layout", folder / "layout.c"],
        check=True,
        capture_output=True,
    )
    output = subprocess.run([folder / "layout"], check=True, capture_output=True, text=True).stdout
    answers: dict[str, int] = json.loads(output)
    return answers


def test_python_and_c_agree_on_every_field(told_by_compiler: dict[str, int]) -> None:
    assert dict(_expressions()) == told_by_compiler


def test_no_byte_of_the_description_is_hidden() -> None:
    for structure in STRUCTURES.values():
        sizes = [getattr(structure, field).size for field, *_ in structure._fields_]
        assert sum(sizes) == ctypes.sizeof(structure)
