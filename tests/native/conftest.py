"""Building C for tests."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Compile(Protocol):
    """The fixture `compile_program`: makes a program of C sources, with warnings as errors."""

    def __call__(self, sources: Sequence[Path], *flags: str | Path) -> Path: ...


@pytest.fixture
def compile_program(tmp_path: Path) -> Compile:
    """Compiles a C program into the test's folder."""

    def compile_(sources: Sequence[Path], *flags: str | Path) -> Path:
        program = tmp_path / sources[0].stem
        command = ["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", program, *sources, *flags]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return program

    return compile_
