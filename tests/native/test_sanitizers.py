"""The simulator under the compiler's sanitizers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.native.building import cuda_headers, sanitized_libraries

if TYPE_CHECKING:
    from tests.native.conftest import Compile
    from tests.support import Simulated

FLAGS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}


@pytest.mark.parametrize("sanitizer", FLAGS)
def test_threads_that_use_everything_at_once_break_no_rule(
    sanitizer: str, compile_program: Compile, simulated: Simulated
) -> None:
    libraries = sanitized_libraries(sanitizer)
    program = compile_program(
        [Path(__file__).with_name("exercise.c")],
        FLAGS[sanitizer],
        f"-I{cuda_headers()}",
        libraries / "libcuda.so.1",
        libraries / "libnvidia-ml.so.1",
        "-pthread",
    )
    # A small GPU: ThreadSanitizer leaves a process too few addresses for the device memory of a large one.
    done = simulated("1xT4").run(
        [program],
        extra={
            "LD_LIBRARY_PATH": str(libraries),
            "ASAN_OPTIONS": "abort_on_error=0:exitcode=99",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            "TSAN_OPTIONS": "exitcode=99:halt_on_error=1",
        },
        timeout=300,
    )
    assert done.stdout == "done\n"
    assert done.stderr == ""
