"""The simulator under the compiler's sanitizers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.native.building import SANITIZERS, cuda_headers, launcher, libraries, sanitizer_options

if TYPE_CHECKING:
    from tests.native.conftest import Compile
    from tests.support import Simulated


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_that_use_everything_at_once_break_no_rule(
    sanitizer: str, compile_program: Compile, simulated: Simulated
) -> None:
    folder = libraries(sanitizer)
    program = compile_program(
        [Path(__file__).with_name("exercise.c")],
        *SANITIZERS[sanitizer],
        f"-I{cuda_headers()}",
        folder / "libcuda.so.1",
        folder / "libnvidia-ml.so.1",
        "-pthread",
    )
    # A small GPU: ThreadSanitizer leaves a process too few addresses for the device memory of a large one.
    done = simulated("1xT4").run(
        [*launcher(sanitizer), program],
        extra=sanitizer_options(folder),
        timeout=300,
    )
    assert done.stdout == "done\n"
    assert done.stderr == ""
