"""Finds the programs of a cluster: what `python -m tools.kube build` made, and the system's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gpuslice.model.errors import GpusliceError


class MissingProgramError(GpusliceError):
    """Raised when a program that a cluster is made of has not been built or installed."""


def folder() -> Path:
    """The folder of programs: GPUSLICE_KUBE_PROGRAMS, or where the build leaves them."""
    given = os.environ.get("GPUSLICE_KUBE_PROGRAMS")
    cache = Path(os.environ.get("GPUSLICE_CACHE") or Path.home() / ".cache" / "gpuslice")
    return Path(given) if given else cache / "kube" / "current"


def program(name: str) -> Path:
    """The program of this name. Raises MissingProgramError with the remedy."""
    path = folder() / name
    if not path.exists():
        raise MissingProgramError(f"{name}: not in {folder()}; in a checkout of gpuslice, run: make kube")
    return path


def installed(name: str) -> str:
    """The system's program of this name. Raises MissingProgramError with the remedy."""
    # Programs that manage a machine are not on every user's PATH.
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        raise MissingProgramError(
            f"{name}: not installed; in a checkout of gpuslice, run: tools/debian-packages cluster"
        )
    return found
