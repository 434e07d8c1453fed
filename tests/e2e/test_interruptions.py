"""However a run of the tests ends, nothing of its clusters and machines is left on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.simulator import machine as machines
from gpuslice.system import processes
from gpuslice_cluster import components
from gpuslice_cluster import node as nodes
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice_cluster.node import Description


@dataclass(frozen=True)
class Run:
    """Of pytest, with the test in interrupted.py: it has a cluster by now."""

    process: subprocess.Popen[bytes]
    node: Description
    #: By its pidfd: an ended process may be there until this machine's first process looks.
    supervisor: int
    machine: str

    def left(self) -> list[str]:
        """What there is still of it."""
        up = {machine.name for machine in machines.machines()} & {self.node.machine, self.machine}
        label = self.node.network.label
        places = [self.node.network.claim, Path("/sys/class/net", label), *Path("/sys/fs/cgroup").glob(f"*/{label}")]
        running = [] if processes.has_ended(self.supervisor) else ["supervisor"]
        return [*up, *running, *(str(place) for place in places if place.exists())]


@contextlib.contextmanager
def _run(folder: Path, *, fail: bool) -> Iterator[Run]:
    told = folder / "told"
    options = ["--numprocesses=1", f"--basetemp={folder / 'inner'}", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, str(Path(__file__).with_name("interrupted.py"))],
            env=environment | {"TOLD": str(told), "FAIL": "yes" if fail else "no"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: told.exists() or process.poll() is not None, "the inner run has a cluster")
        assert told.exists(), (folder / "output").read_text()
        cluster, machine = told.read_text().splitlines()
        node, status = nodes.description(Path(cluster)), components.read_status(Path(cluster))
        assert node is not None
        assert status is not None
        supervisor = os.pidfd_open(status.supervisor)
        with processes.closing(supervisor):
            told.unlink()
            yield Run(process, node, supervisor, machine)
    finally:
        process.kill()
        process.wait()


def test_a_test_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with _run(tmp_path, fail=True) as run:
        assert run.process.wait() == 1
        assert run.left() == []


def test_a_run_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    with _run(tmp_path, fail=False) as run:
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait() == 2
        assert run.left() == []


def test_a_run_that_is_killed_is_cleared_up_after(tmp_path: Path) -> None:
    with _run(tmp_path, fail=False) as run:
        run.process.kill()
        eventually(lambda: not run.left(), "nothing is left", seen=run.left)
