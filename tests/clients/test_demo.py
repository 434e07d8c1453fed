"""What `make demo` runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.clients.conftest import Clients

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "run"


def test_the_demonstration_computes_on_both_gpus(client: Clients) -> None:
    client("cudart-12.9")
    clean = {name: value for name, value in os.environ.items() if name not in ("GPUSLICE_SIM", "LD_LIBRARY_PATH")}
    done = subprocess.run([DEMO], check=False, capture_output=True, text=True, timeout=120, env=clean)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if " right " in line] == ["0", "1"]
    assert sum("/saxpy " in line for line in lines) == 2
    assert "No process uses them." in lines
