"""Adding a dialect is adding its module: everything that knows of dialects follows from what the module declares."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Dialect, PodField, Resource, WholeGpus

ROOT = Path(__file__).resolve().parents[3]
OF_THE_TOY = "tests/unit/dialects/added_checks.py"
#: That CEL and the core agree about every pod, of the dialect's resources, annotations and labels among others.
OF_ALL = "tests/unit/admission/test_match_conditions.py"


@pytest.mark.parametrize("checks", [OF_THE_TOY, OF_ALL])
def test_a_dialect_is_its_module_and_nothing_else(checks: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.unit.dialects.adding", "--numprocesses=0", checks]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def _read(_said: object) -> None: ...


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"resources": (Resource("a.example/b"),)}, "no prefix of a.example/b is declared"),
        (
            {"fields": (PodField("a", forms.AnyText(), asks=True, setting="x.a"),)},
            "cannot be renamed by a setting",
        ),
        ({"whole_gpus": WholeGpus.ASK}, "needs a switch"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(declared: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dialect(name="x", read=_read, **declared)  # type: ignore[arg-type]  # mistakes are what this is about
