"""Python's mirror of the session's pages and of the attach message, and the C compiler's word on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.node.sessions import page
from tests.native.building import ROOT
from tests.native.c_layout import expressions, told_by_compiler

if TYPE_CHECKING:
    import ctypes
    from pathlib import Path

HEADER = ROOT / "native" / "include" / "page.h"

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "gpuslice_gpu": page.Gpu,
    "gpuslice_control": page.Control,
    "gpuslice_cell": page.Cell,
    "gpuslice_clock": page.Clock,
    "gpuslice_attach": page.Attach,
    "gpuslice_attached": page.Attached,
    "gpuslice_process": page.ProcessNumbers,
}
#: Cells' words: nothing, some of it spare, all of it, more than there is, and every bit set.
WORDS = (0, 100, 100 | 30 << 36, 100 | 100 << 36 | 5 << 52, 100 | 101 << 36, 2**36 - 1, 2**64 - 1)
CONSTANTS = {
    "GPUSLICE_PAGE_MAGIC": page.MAGIC,
    "GPUSLICE_PAGE_VERSION": page.VERSION,
    "GPUSLICE_MAX_GPUS": page.MAX_GPUS,
    "GPUSLICE_SLOTS": page.SLOTS,
    "GPUSLICE_LANES": page.LANES,
    "GPUSLICE_SESSION_BYTES": page.SESSION_BYTES,
    "GPUSLICE_TOKEN_BYTES": page.TOKEN_BYTES,
    "GPUSLICE_CONTROL_BYTES": page.CONTROL_BYTES,
    "GPUSLICE_ACTIVE": page.ACTIVE,
    "GPUSLICE_EXPIRED": page.EXPIRED,
    "GPUSLICE_RELEASED": page.RELEASED,
    "GPUSLICE_UNIT": page.UNIT,
    "GPUSLICE_UNITS_MASK": page.UNITS_MASK,
    "GPUSLICE_SPARE_SHIFT": page.SPARE_SHIFT,
    "GPUSLICE_SPARE_MASK": page.SPARE_MASK,
    "GPUSLICE_EPOCH_SHIFT": page.EPOCH_SHIFT,
    "GPUSLICE_EPOCH_MASK": page.EPOCH_MASK,
    "GPUSLICE_BYTES_MASK": page.BYTES_MASK,
    "GPUSLICE_ATTACH_MAGIC": page.ATTACH_MAGIC,
    "GPUSLICE_ATTACH_OBSERVER": page.ATTACH_OBSERVER,
    "GPUSLICE_ATTACH_PROCESSES": page.ATTACH_PROCESSES,
    "GPUSLICE_NO_SLOT": page.NO_SLOT,
    "GPUSLICE_ATTACH_OK": page.ATTACH_OK,
    "GPUSLICE_ATTACH_DENIED": page.ATTACH_DENIED,
    "GPUSLICE_ATTACH_UNKNOWN": page.ATTACH_UNKNOWN,
    "GPUSLICE_ATTACH_FULL": page.ATTACH_FULL,
    "GPUSLICE_ATTACH_BROKEN": page.ATTACH_BROKEN,
    "GPUSLICE_ATTACH_BUSY": page.ATTACH_BUSY,
    **{f"gpuslice_held_units({word}ull) * GPUSLICE_UNIT": page.held_bytes(word) for word in WORDS},
    "gpuslice_clocks_offset(16)": page.clocks_offset(16),
    "gpuslice_cells_bytes(1)": page.cells_bytes(1),
    "gpuslice_cells_bytes(16)": page.cells_bytes(16),
}


def test_python_and_c_agree_on_every_field(tmp_path: Path) -> None:
    expected = dict(expressions(CONSTANTS, STRUCTURES))
    assert told_by_compiler(HEADER, expected, tmp_path) == expected


def test_a_cell_s_words_are_in_the_order_of_its_fields() -> None:
    cell = page.Cell(charged=1, granted=2, denied=3, overhead=4, peak=5)
    assert page.SLOT_WORDS.unpack(bytes(cell) * page.LANES) == (1, 2, 3, 4, 5) * page.LANES
    assert page.SLOT_WORDS.size == page.SLOT_BYTES
