"""One cluster for all tests of a run, whichever of pytest's workers they run in."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def run_process() -> int:
    """The process that ends with the run: pytest itself, not a worker, which ends with its last test."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` filled: by whichever worker needs it first, while the others wait."""
    folder = run_folder(tmp_path_factory) / name
    complete = folder / ".complete"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            complete.touch()
    return folder
