"""What test_interruptions.py runs, and interrupts: a test with a cluster and a simulated machine of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice_cluster import creating
from gpuslice_cluster.creating import ClusterOptions
from tests.cluster.sharing import run_process

if TYPE_CHECKING:
    from tests.support import Simulated


def test_that_does_not_end_by_itself(simulated: Simulated, tmp_path: Path) -> None:
    name = f"interrupted-{os.getpid()}"
    machine = simulated()
    cluster = creating.create(
        ClusterOptions(name=name, folder=tmp_path / name, owner=run_process(), install=False), print
    )
    told = Path(os.environ["TOLD"])
    beside = told.with_name("beside")
    beside.write_text(f"{cluster.folder}\n{machine.name}\n")
    beside.rename(told)
    while told.exists():  # until it has been looked at
        time.sleep(0.1)
    while os.environ["FAIL"] == "no":
        time.sleep(0.1)
    raise AssertionError
