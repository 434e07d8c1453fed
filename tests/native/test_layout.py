"""Python's mirror of the machine file and the C compiler's word on it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from gpuslice.simulator import layout
from tests.native.building import ROOT
from tests.native.c_layout import expressions, told_by_compiler

if TYPE_CHECKING:
    from pathlib import Path

HEADER = ROOT / "native" / "simulator" / "machine.h"

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
    "offsetof(struct sim_machine, description)": 0,
}


def test_python_and_c_agree_on_every_field(tmp_path: Path) -> None:
    expected = dict(expressions(CONSTANTS, STRUCTURES))
    assert told_by_compiler(HEADER, expected, tmp_path) == expected


def test_no_byte_of_the_description_is_hidden() -> None:
    for structure in STRUCTURES.values():
        sizes = [getattr(structure, field).size for field, *_ in structure._fields_]
        assert sum(sizes) == ctypes.sizeof(structure)
