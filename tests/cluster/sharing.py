"""One cluster for all tests of a run, whichever of pytest's workers they run in."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

    from gpuslice_cluster.clusters import Cluster


def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def run_process() -> int:
    """The process that ends with the run: pytest itself, not a worker, which ends with its last test."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


@contextlib.contextmanager
def new_namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of a test's own."""
    name = f"test-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    # Without it pods are refused; the controller manager makes it a moment later.
    cluster.kubectl("wait", "--namespace", name, "--for=create", "serviceaccount/default", "--timeout=30s")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


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
