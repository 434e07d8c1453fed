"""Measures what the simulated driver's calls cost, shows a table, and writes `bench/results/latest.json`.

The programs in `bench/native` are compiled here against NVIDIA's headers and run on a simulated machine of their own.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table

from gpuslice.simulator import configuration, machine

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT: Final = Path(__file__).resolve().parent
_RESULTS: Final = _ROOT / "results" / "latest.json"
_GOALS_NS: Final = {"alloc+free": 80.0, "cuLaunchKernel": 40.0}


@dataclass(frozen=True)
class Result:
    """One line of a benchmark program: medians in nanoseconds."""

    name: str
    nanoseconds: float
    minimum: float
    baseline: float
    baseline_name: str
    ratio: float

    @property
    def goal_ns(self) -> float | None:
        """What we promise for the call, in all its forms."""
        return _GOALS_NS.get(self.name.partition(",")[0])


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


def measure() -> list[Result]:
    described = configuration.from_text("1xA100-40GB", name=f"bench-{os.getpid()}")
    simulated = machine.create(described)
    try:
        with tempfile.TemporaryDirectory() as work:
            program = build(Path(work), simulated.libraries)
            environment = os.environ | simulated.environment(os.environ)
            done = subprocess.run([program], check=True, stdout=subprocess.PIPE, text=True, env=environment)
    finally:
        simulated.destroy()
    return [Result(**json.loads(line)) for line in done.stdout.splitlines()]


def table(results: Sequence[Result]) -> Table:
    title = "What a call of the simulated driver costs"
    shown = Table("call", "baseline", title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("ns", "baseline ns", "ratio", "goal"):
        shown.add_column(heading, justify="right")
    for result in results:
        goal = result.goal_ns
        colour = "" if goal is None else "[green]" if result.nanoseconds <= goal else "[red]"
        shown.add_row(
            result.name,
            result.baseline_name,
            f"{colour}{result.nanoseconds:.1f}",
            f"{result.baseline:.1f}",
            f"{result.ratio:.2f}",
            "" if goal is None else f"≤ {goal:.0f}",
        )
    return shown


def main() -> int:
    results = measure()
    Console().print(table(results))
    _RESULTS.parent.mkdir(exist_ok=True)
    report = {
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "results": [asdict(result) for result in results],
    }
    _RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    return 0
