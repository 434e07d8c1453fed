"""What C programs of tests are built against."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


#: How programs are compiled that use libraries with a sanitizer.
SANITIZERS = {"address": ("-fsanitize=address,undefined",), "thread": ("-fsanitize=thread", "-Wno-tsan")}


def sanitizer_options(libraries: Path) -> dict[str, str]:
    """The environment of such a program: its first finding ends it with a failure."""
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "ASAN_OPTIONS": "abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "TSAN_OPTIONS": "exitcode=99:halt_on_error=1",
    }


def launcher(build: str) -> list[str]:
    """What such a program is started with.

    ThreadSanitizer leaves a process a window of addresses that is only just large enough for the device memory of small
    GPUs: where the kernel scatters mappings at random, they sometimes do not fit.
    """
    return ["setarch", "--addr-no-randomize"] if build == "thread" else []


def libraries(sanitizer: str) -> Path:
    """The folder with the simulator's libraries, built with that sanitizer (address or thread)."""
    folder = ROOT / "build" / sanitizer / "native" / "simulator"
    if not (folder / "libcuda.so.1").is_file():
        pytest.fail(f"there is no build with the {sanitizer} sanitizer: run `make sanitizers`", pytrace=False)
    return folder


def cuda_headers() -> Path:
    """The folder of cuda.h and nvml.h, from the wheels that the build uses."""
    import nvidia

    for root in nvidia.__path__:
        folder = Path(root) / "cu13" / "include"
        if (folder / "cuda.h").is_file():
            return folder
    raise AssertionError("NVIDIA's headers are not installed: run `make setup`")
