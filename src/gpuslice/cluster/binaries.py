"""Where the programs of Kubernetes are that `python -m tools.kube build` made."""

from __future__ import annotations

import os
from pathlib import Path

from gpuslice.model.errors import GpusliceError


class MissingProgramError(GpusliceError):
    """Raised when a program that a cluster is made of has not been built."""


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
