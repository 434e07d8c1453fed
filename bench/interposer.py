"""What the interposer costs: each call bare, behind the least that an interposer can do, and behind gpuslice.

`python -m bench.interposer` shows a table and writes `bench/results/interposer.json`. The variants take turns in
one run, and each figure is the median over the turns. The measuring thread's processor time counts, except for starts.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table

from bench.run import cuda_headers
from gpuslice.cli import preload
from gpuslice.node.client import AgentClient
from gpuslice.simulator import configuration, machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuslice.node.messages import SessionView

_ROOT: Final = Path(__file__).resolve().parent
_RESULTS: Final = _ROOT / "results" / "interposer.json"
_VARIANTS: Final = ("bare", "floor", "gpuslice")
_TURNS: Final = 7
_TOGETHER: Final = (1, 4, 16, 64)
_LIMIT: Final = 4 << 30
#: What is promised: nanoseconds added to the bare call; the unit says where it is something else.
_GOALS: Final = {
    **{f"alloc+free, {live} live": 60.0 for live in (1, 1000, 10000, 100000)},
    "alloc+free, 8 processes idle beside it": 120.0,
    "alloc+free, 8 processes at once": 120.0,
    "launch": 3.0,
    "cuMemGetInfo": 30.0,
    **{f"start of {count} together": 2e6 for count in _TOGETHER},
}
_NAMES: Final = {
    **{f"live-{live}": f"alloc+free, {live} live" for live in (1, 1000, 10000, 100000)},
    **{f"threads-{count}": f"alloc+free, {count} threads" for count in (1, 2, 4)},
    "pair": "alloc+free, 8 processes idle beside it",
    "busy": "alloc+free, 8 processes at once",
    "async": "alloc+free in stream order",
    "info": "cuMemGetInfo",
}
_MEMORY_GOAL: Final = 1 << 20


@dataclass(frozen=True)
class Figure:
    """One call in all variants, in nanoseconds."""

    name: str
    bare: float
    floor: float | None
    gpuslice: float
    goal_added: float | None

    @property
    def added(self) -> float:
        return self.gpuslice - self.bare

    @property
    def ratio(self) -> float:
        return self.gpuslice / self.bare


class Bench:
    """A simulated machine, an agent and a session, and the programs; all gone at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.machine = machine.create(configuration.from_text("1xA100-40GB", name=f"bench-interposer-{os.getpid()}"))
        stack.callback(self.machine.destroy)
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuslice-bench.", dir="/dev/shm")))
        self.base = os.environ | self.machine.environment(os.environ)
        self.program = self._compile("slice_calls", self.machine.libraries / "libcuda.so.1", "-pthread")
        self.session = self._start_agent()
        self.environments = {"bare": self.base, "floor": self._floor(), "gpuslice": self._inside()}

    def _compile(self, name: str, *flags: str | Path, output: str = "") -> Path:
        made = self.folder / (output or name)
        compiler: list[str | Path] = [
            os.environ.get("CC", "cc"),
            "-std=gnu11",
            "-O2",
            "-Wall",
            "-Wextra",
            "-isystem",
            cuda_headers(),
        ]
        subprocess.run([*compiler, _ROOT / "native" / f"{name}.c", "-o", made, *flags], check=True)
        return made

    def _start_agent(self) -> SessionView:
        program = Path(sys.executable).parent / "gpuslice"
        command: list[str | Path] = [program, "agent", "--state", self.folder / "state", "--metrics", "none"]
        log = self._stack.enter_context((self.folder / "log").open("w"))
        agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.base)
        self._stack.callback(agent.wait)
        self._stack.callback(agent.terminate)
        assert agent.stdout is not None
        assert "is ready" in agent.stdout.readline(), (self.folder / "log").read_text()
        client = self._stack.enter_context(AgentClient.discover(self.folder / "state", {}))
        return client.create(_LIMIT)

    def _floor(self) -> dict[str, str]:
        library = self._compile("floor", "-shared", "-fPIC", "-ldl", output="libfloor.so")
        counter = self.folder / "counter"
        counter.write_bytes((0).to_bytes(8, "little") + _LIMIT.to_bytes(8, "little") + bytes(112))
        real = self.machine.libraries / "libcuda.so.1"
        return self.base | {"LD_PRELOAD": str(library), "FLOOR_PAGE": str(counter), "FLOOR_REAL": str(real)}

    def _inside(self) -> dict[str, str]:
        return self.base | preload.environment(self.session, self.base)

    def run(self, variant: str, *arguments: str) -> dict[str, float]:
        return _figures(self._start(variant, *arguments).communicate()[0])

    def stay(self, variant: str, count: int) -> list[subprocess.Popen[str]]:
        """Processes that take part in the session; they end when their input does."""
        return self._start_ready(variant, count, "stay")

    def run_at_once(self, variant: str, count: int) -> list[dict[str, float]]:
        """Processes that all begin when the last of them is ready."""
        started = self._start_ready(variant, count, "together")
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [_figures(process.communicate()[0]) for process in started]

    def _start_ready(self, variant: str, count: int, mode: str) -> list[subprocess.Popen[str]]:
        started = [self._start(variant, mode) for _ in range(count)]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready 0\n"
        return started

    def run_together(self, variant: str, count: int, *arguments: str) -> list[dict[str, float]]:
        started = [self._start(variant, *arguments) for _ in range(count)]
        return [_figures(process.communicate()[0]) for process in started]

    def _start(self, variant: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environments[variant],
        )


def _figures(output: str) -> dict[str, float]:
    assert output, "a benchmark program failed"
    return {name: float(number) for name, number in (line.split() for line in output.splitlines())}


def _calls(bench: Bench) -> dict[str, dict[str, float]]:
    """Nanoseconds by call and variant."""
    turns: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(_TURNS):
        for variant in _VARIANTS:
            others = bench.stay(variant, 8)
            found = bench.run(variant, "pair")
            for other in others:
                other.communicate()
            found["busy"] = statistics.median(busy["pair"] for busy in bench.run_at_once(variant, 8))
            found |= bench.run(variant, "calls")
            for count in (1, 2, 4):
                found |= bench.run(variant, "threads", str(count))
            for name, number in found.items():
                turns[_NAMES.get(name, name), variant].append(number)
    table: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, variant), numbers in turns.items():
        table[name][variant] = statistics.median(numbers)
    return table


def _starts(bench: Bench) -> tuple[list[Figure], float]:
    """Wall time per process from start to end with a cuInit in it, and the bytes that gpuslice adds to a process."""
    figures, private = [], {}
    for count in _TOGETHER:
        turns: dict[str, list[float]] = defaultdict(list)
        for _ in range(_TURNS):
            for variant in ("bare", "gpuslice"):
                begin = time.perf_counter_ns()
                said = bench.run_together(variant, count, "start")
                turns[variant].append((time.perf_counter_ns() - begin) / count)
                private[variant] = statistics.median(process["private"] for process in said)
        bare, gpuslice = (statistics.median(turns[variant]) for variant in ("bare", "gpuslice"))
        name = f"start of {count} together"
        figures.append(Figure(name, bare, None, gpuslice, _GOALS[name]))
    return figures, private["gpuslice"] - private["bare"]


def _order(name: str) -> int:
    names = [*(f"alloc+free, {live} live" for live in (1, 1000, 10000, 100000)), _NAMES["pair"], _NAMES["busy"]]
    names += [*(f"alloc+free, {count} threads" for count in (1, 2, 4)), _NAMES["async"], "launch", "cuMemGetInfo"]
    return names.index(name)


def table(figures: Sequence[Figure], *, title: str, scale: float) -> Table:
    shown = Table("", title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("bare", "floor", "gpuslice", "ratio", "added", "goal"):
        shown.add_column(heading, justify="right")
    for figure in figures:
        goal = figure.goal_added
        colour = "" if goal is None else "[green]" if figure.added <= goal else "[red]"
        shown.add_row(
            figure.name,
            f"{figure.bare / scale:.1f}",
            "" if figure.floor is None else f"{figure.floor / scale:.1f}",
            f"{figure.gpuslice / scale:.1f}",
            f"{figure.ratio:.2f}",
            f"{colour}{figure.added / scale:.1f}",
            "" if goal is None else f"≤ {goal / scale:.0f}",
        )
    return shown


def measure() -> tuple[list[Figure], float]:
    with ExitStack() as stack:
        bench = Bench(stack)
        found: Mapping[str, Mapping[str, float]] = _calls(bench)
        figures = [
            Figure(name, by["bare"], by["floor"], by["gpuslice"], _GOALS.get(name))
            for name, by in sorted(found.items(), key=lambda item: _order(item[0]))
        ]
        starts, memory = _starts(bench)
        return [*figures, *starts], memory


def main() -> int:
    figures, memory = measure()
    console = Console()
    starts = [figure for figure in figures if figure.floor is None]
    calls = [figure for figure in figures if figure.floor is not None]
    console.print(table(calls, title="A call in ns (floor: a counter and a table of pointers, no promises)", scale=1))
    console.print(table(starts, title="A process that calls cuInit, from start to end, in µs", scale=1e3))
    colour = "green" if memory <= _MEMORY_GOAL else "red"
    console.print(f"memory of a process, added: [{colour}]{memory / 1024:.0f} KiB[/] (goal: ≤ {_MEMORY_GOAL // 1024})")
    _RESULTS.parent.mkdir(exist_ok=True)
    report = {
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "added_private_bytes": memory,
        "results": [asdict(figure) | {"ratio": figure.ratio, "added": figure.added} for figure in figures],
    }
    _RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
