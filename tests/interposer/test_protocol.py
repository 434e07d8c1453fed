"""The reserve protocol and the table of allocations, as C compiles them: test_reserve.c, test_allocation_table.c."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.native.building import ROOT, SANITIZERS, sanitizer_options

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interposer.conftest import Build

TESTS = ROOT / "native" / "tests"


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=sanitizer_options(program.parent),
    )


def every_check_holds(program: Path, *arguments: str) -> None:
    done = run(program, *arguments)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]
    assert done.stdout.endswith(" 0 failed\n")


# ThreadSanitizer does not know coroutines: it watches real threads and processes.
@pytest.mark.parametrize(
    ("which", "sanitizer"),
    [(which, "plain") for which in ("orders", "kills", "threads")]
    + [(which, "address") for which in ("orders", "kills", "threads")]
    + [(which, "thread") for which in ("kills", "threads")],
)
def test_reserving_keeps_its_promises(which: str, sanitizer: str, build: Build) -> None:
    flags = SANITIZERS.get(sanitizer, ())
    every_check_holds(build(TESTS / "test_reserve.c", *flags, name=f"reserve-{sanitizer}"), which)


@pytest.mark.parametrize("sanitizer", ["plain", *SANITIZERS])
def test_reserving_keeps_its_promises_when_threads_have_lanes(sanitizer: str, build: Build) -> None:
    flags = (*SANITIZERS.get(sanitizer, ()), "-DGPUSLICE_LANES=4u")
    every_check_holds(build(TESTS / "test_reserve.c", *flags, name=f"reserve-lanes-{sanitizer}"), "threads")


@pytest.mark.parametrize("sanitizer", ["plain", *SANITIZERS])
def test_the_table_of_allocations_is_right_from_many_threads_and_with_no_memory(sanitizer: str, build: Build) -> None:
    flags = SANITIZERS.get(sanitizer, ())
    every_check_holds(build(TESTS / "test_allocation_table.c", *flags, name=f"table-{sanitizer}"))


MUTATIONS = {
    "the sum before the units": (
        """        if (!reserve_add(own, units)) {
            return false;
        }
        GPUSLICE_STEP("charged");
        uint64_t sum = page_sum(page, gpu).charged;
""",
        """        uint64_t sum = page_sum(page, gpu).charged + units * GPUSLICE_UNIT;
        reserve_add(own, units);
""",
    ),
    "no withdrawal": ("        atomic_fetch_sub(&own->charged, units);\n", ""),
    "the own cell alone": ("for (uint32_t i = 0; i < cells; i++)", "for (uint32_t i = 0; i < cells && i < 1; i++)"),
    "spare that is not in the sum": ("units += gpuslice_units(charged);", "units += gpuslice_held_units(charged);"),
    "spare that no other process can have": ("i < cells && units <", "i < 1 && units <"),
    "spare taken without looking again": (
        "atomic_compare_exchange_strong(cell, &charged, reserve_bare(charged))",
        "(atomic_fetch_sub(cell, charged - reserve_bare(charged)), true)",
    ),
    "spare from before the limit was lowered": ("gpuslice_epoch(charged) == epoch", "epoch <= GPUSLICE_EPOCH_MASK"),
    "grown within a limit that is no more": (" && page_epoch(page, gpu) == epoch", ""),
    "the limit before the epoch": (
        "uint64_t epoch = page_epoch(page, gpu), limit = page_limit(page, gpu);",
        "uint64_t limit = page_limit(page, gpu), epoch = page_epoch(page, gpu);",
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_protocol_is_found_out(mutation: str, build: Build, tmp_path: Path) -> None:
    """Without this, the tests above might say nothing."""
    before, after = MUTATIONS[mutation]
    text = (ROOT / "native" / "interposer" / "reserve.h").read_text()
    assert text.count(before) == 1, "reserve.h has changed: change this test with it"
    header = tmp_path / "reserve.h"
    header.write_text(text.replace(before, after).replace("../include/page.h", str(ROOT / "native/include/page.h")))
    program = build(TESTS / "test_reserve.c", f'-DRESERVE_HEADER="{header}"', name=f"broken-{mutation}")
    done = run(program, "orders")
    assert done.returncode == 1
    assert "not so: " in done.stdout
