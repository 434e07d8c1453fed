"""What the built libraries need of the system that loads them: an image may be as old as glibc 2.17."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from native.tools import glibc

import gpuslice
from tests.native.building import ROOT

OLDEST = (2, 17)
#: What is preloaded into every process of an image may need nothing that the image's programs do not need themselves.
NEEDED = {
    "interposer/libgpuslice.so": {"libc.so.6"},
    "interposer/libgpuslice-nvml.so": {"libc.so.6"},
    # As the vendor's libraries do.
    "simulator/libcuda.so.1": {"libc.so.6", "libpthread.so.0"},
    "simulator/libnvidia-ml.so.1": {"libc.so.6", "libpthread.so.0"},
}
SYMBOLS = ROOT / "native" / "glibc" / "symbols.txt"


def built(name: str) -> Path:
    return next(path for folder in gpuslice.__path__ if (path := Path(folder) / "lib" / name).is_file())


def headers(library: Path) -> str:
    return subprocess.run(["objdump", "-p", library], check=True, capture_output=True, text=True).stdout


def undefined(library: Path) -> dict[str, str]:
    """What it needs of others, by name: `w` for what it can do without, and U for what it cannot."""
    command = ["nm", "--dynamic", "--undefined-only"]
    lines = subprocess.run([*command, library], check=True, capture_output=True, text=True).stdout.splitlines()
    return {name: kind for kind, name in (line.split() for line in lines)}


@pytest.mark.parametrize("name", NEEDED)
def test_it_needs_no_newer_c_library_than_the_oldest_image_has(name: str) -> None:
    text = headers(built(name))
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)$", text, re.MULTILINE)}
    assert versions
    assert max(versions) <= OLDEST
    assert "GLIBC_ABI" not in text  # relocations that only newer loaders read


@pytest.mark.parametrize(("name", "needed"), NEEDED.items())
def test_it_needs_no_other_library(name: str, needed: set[str]) -> None:
    text = headers(built(name))
    assert set(re.findall(r"NEEDED +(\S+)", text)) == needed
    assert "RUNPATH" not in text
    assert "RPATH" not in text


@pytest.mark.parametrize("name", NEEDED)
def test_what_has_no_version_can_be_absent(name: str) -> None:
    unversioned = {symbol: kind for symbol, kind in undefined(built(name)).items() if "@" not in symbol}
    assert set(unversioned.values()) <= {"w"}


@pytest.mark.parametrize("name", NEEDED)
def test_a_thread_variable_costs_no_call(name: str) -> None:
    assert not any(symbol.startswith("__tls_get_addr") for symbol in undefined(built(name)))


def test_the_list_names_nothing_newer_and_nothing_twice() -> None:
    libraries = glibc.read(SYMBOLS.read_text(), "x86_64")
    versions = [version for found in libraries.values() for version in found]
    names = [name for found in libraries.values() for each in found.values() for name in each]
    assert all(tuple(map(int, version.removeprefix("GLIBC_").split("."))) <= OLDEST for version in versions)
    assert len(names) == len(set(names))


def test_on_arm_all_names_are_of_the_version_that_it_came_with() -> None:
    assert {version for found in glibc.read(SYMBOLS.read_text(), "aarch64").values() for version in found} == {
        "GLIBC_2.17"
    }
