"""Every name of both APIs, as the build read them from NVIDIA's headers, is there and answers."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.native.building import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Simulated

GENERATED = ROOT / "build" / "editable" / "native" / "generated"
NOT_SUPPORTED = 801

#: Calls each function named on its input with zeros, and says what it answered. It says the name before the call, so
#: that the last line names a function that crashed.
CALL_ALL = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()

def begin():
    cuda.cuInit(0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)

for name in sys.stdin.read().split():
    if sys.argv[1] == "after":
        begin()
    print(name, end=" ", flush=True)
    print(cuda[name](*[ctypes.c_uint64(0)] * 12), flush=True)
"""


def names(api: str) -> list[str]:
    return (GENERATED / f"{api}_names.txt").read_text().split()


def exported(library: Path) -> dict[str, str]:
    """The library's functions, each with its kind: T is a definition, W a weak one that none overrode."""
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return {line.split()[2].split("@")[0]: line.split()[1] for line in listing.splitlines()}


def answers(simulated: Simulated, when: str, asked: list[str]) -> dict[str, int]:
    done = simulated().run([sys.executable, "-c", CALL_ALL, when], check=False, stdin="\n".join(asked))
    assert done.returncode == 0, f"crashed in {done.stdout.splitlines()[-1]}\n{done.stderr}"
    return {name: int(code) for name, code in (line.split() for line in done.stdout.splitlines())}


@pytest.mark.parametrize(("api", "library"), [("cuda", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")])
def test_every_name_is_exported(api: str, library: str, simulated: Simulated) -> None:
    found = exported(simulated().machine.libraries / library)
    assert len(names(api)) > 300
    assert set(names(api)) - found.keys() == set()


def test_every_function_of_the_driver_answers_zeros_with_a_code(simulated: Simulated) -> None:
    given = answers(simulated, "after", names("cuda"))
    assert given.keys() == set(names("cuda"))
    assert {name: code for name, code in given.items() if not 0 <= code <= 999} == {}
    weak = {name for name, kind in exported(simulated().machine.libraries / "libcuda.so.1").items() if kind in "WwVv"}
    stubs = {name for name in weak & given.keys() if not name.endswith(("_ptsz", "_ptds"))}
    assert {name: given[name] for name in stubs if given[name] != NOT_SUPPORTED} == {}


def test_before_init_no_function_of_the_driver_does_anything(simulated: Simulated) -> None:
    given = answers(simulated, "before", [name for name in names("cuda") if name != "cuInit"])
    assert {name for name, code in given.items() if code == 0} == set()
