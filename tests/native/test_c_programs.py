"""The simulated driver, called from C: the programs of native/tests.

Each runs on the libraries as they are installed, and on those built with sanitizers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.native.building import ROOT, SANITIZERS, cuda_headers, launcher, libraries, sanitizer_options

if TYPE_CHECKING:
    from pathlib import Path

    from tests.native.conftest import Compile
    from tests.support import Simulated

FOLDER = ROOT / "native" / "tests"
INCLUDES_DRIVER = re.compile(r'#include (<cuda\.h>|"(device|graph)\.h")')


def uses_driver(source: Path) -> bool:
    """The other programs there test parts of the interposer."""
    text = source.read_text()
    return INCLUDES_DRIVER.search(text) is not None and "../interposer" not in text


PROGRAMS = [source for source in sorted(FOLDER.glob("*.c")) if uses_driver(source)]
FUZZ_ROUNDS = "4000"


@pytest.mark.parametrize("build", ["plain", *SANITIZERS])
@pytest.mark.parametrize("source", PROGRAMS, ids=lambda path: path.stem)
def test_every_check_of_the_program_holds(
    source: Path, build: str, compile_program: Compile, simulated: Simulated
) -> None:
    # Small GPUs: ThreadSanitizer leaves a process too few addresses for the device memory of a large one.
    machine = simulated("2xT4")
    folder = machine.machine.libraries if build == "plain" else libraries(build)
    flags = [*SANITIZERS.get(build, ()), "-Wno-deprecated-declarations", f"-I{cuda_headers()}", "-pthread"]
    program = compile_program([source], *flags, folder / "libcuda.so.1")
    arguments = [FUZZ_ROUNDS] if source.stem.startswith("fuzz") else []
    done = machine.run(
        [*launcher(build), program, *arguments], check=False, timeout=300, extra=sanitizer_options(folder)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" 0 failed\n")


def test_the_programs_are_found() -> None:
    assert {"test_launch", "test_modules", "test_streams", "fuzz_image"} <= {source.stem for source in PROGRAMS}
