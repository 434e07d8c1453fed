"""Measures what the simulated driver's calls cost, shows a table, and writes `bench/results/driver.json`.

The programs in `bench/native` are compiled here against NVIDIA's headers and run on a simulated machine of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.figures import Figure, publish
from gpuslice.simulator import configuration, machine

_ROOT: Final = Path(__file__).resolve().parent
_GOALS_NS: Final = {"alloc+free": 80.0, "cuLaunchKernel": 40.0}


def cuda_headers() -> Path:
    """Where the build found cuda.h: in the newest CUDA wheel of this environment."""
    script = _ROOT.parent / "native" / "tools" / "headers.py"
    found = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True).stdout
    return Path(found.strip().split(";")[0])


def build(work: Path, libraries: Path) -> Path:
    """Compiles the benchmark and the library with the empty function, and returns the program."""
    native, program = _ROOT / "native", work / "driver_calls"
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-Wall", "-Wextra"]
    subprocess.run([*compiler, "-shared", "-fPIC", native / "empty.c", "-o", work / "libempty.so"], check=True)
    subprocess.run(
        [
            *compiler,
            *("-isystem", cuda_headers(), native / "driver_calls.c", "-o", program),
            *(f"-L{work}", "-lempty", f"-Wl,-rpath,{work}", libraries / "libcuda.so.1"),
        ],
        check=True,
    )
    return program


def measure() -> list[Figure]:
    described = configuration.from_text("1xA100-40GB", name=f"bench-{os.getpid()}")
    simulated = machine.create(described)
    try:
        with tempfile.TemporaryDirectory() as work:
            program = build(Path(work), simulated.libraries)
            environment = os.environ | simulated.environment(os.environ)
            done = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True, env=environment)
    finally:
        simulated.destroy()
    return [_figure(json.loads(line)) for line in done.stdout.splitlines()]


def _figure(line: dict[str, Any]) -> Figure:
    goal = _GOALS_NS.get(line["name"].partition(",")[0])
    return Figure(
        name=f"{line['name']} ({line['baseline_name']})",
        unit="ns",
        value=line["nanoseconds"],
        baseline=line["baseline"],
        spread=line["spread"],
        value_at_most=goal,
    )


def main() -> int:
    publish("driver", "What a call of the simulated driver costs", "baseline", measure())
    return 0


if __name__ == "__main__":
    sys.exit(main())
