"""What the interposer costs: each call bare, behind the least that an interposer can do, and behind gpuslice.

`python -m bench.interposer` shows tables and writes `bench/results/interposer*.json`. Each variant is a process that
measures a batch whenever it is told to, so the variants take turns within a millisecond (`bench.turns`). The measuring
thread's processor time counts, except for starts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.figures import Figure, publish
from bench.run import cuda_headers
from bench.turns import take_turns
from gpuslice.cli.run import preload
from gpuslice.node.admin.client import AgentClient
from gpuslice.simulator import configuration, machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.turns import Sample
    from gpuslice.node.admin.messages import SessionView

_ROOT: Final = Path(__file__).resolve().parent
_VARIANTS: Final = ("bare", "floor", "gpuslice")
_TURNS: Final = 200
_START_TURNS: Final = 25
_LIVE: Final = (1, 1000, 10000, 100000)
_THREADS: Final = (1, 2, 4)
_BESIDE: Final = 8
_TOGETHER: Final = (1, 4, 16, 64)
_LIMIT: Final = 4 << 30
#: Nanoseconds that gpuslice may add to the bare call.
_PAIR_NS: Final = 60
_BUSY_PAIR_NS: Final = 120
_STREAM_ORDERED_PAIR_NS: Final = 120
_LAUNCH_NS: Final = 3
_MEMORY_INFO_NS: Final = 30
_START_MICROSECONDS: Final = 2000
_MEMORY_KIB: Final = 1024


class Worker:
    """A process that measures a batch when it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._input, self._output = process, process.stdin, process.stdout
        assert self._output.readline() == "ready\n", "a benchmark program failed"

    def ask(self, request: str) -> None:
        self._input.write(request + "\n")
        self._input.flush()

    def answer(self) -> float:
        return float(self._output.readline())

    def measure(self, request: str) -> float:
        self.ask(request)
        return self.answer()

    def end(self) -> None:
        self._process.communicate()


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

    @contextmanager
    def workers(self, count: int = 1) -> Iterator[Mapping[str, Sequence[Worker]]]:
        """So many processes of each variant, each with one allocation."""
        started = {name: [Worker(self._start(name, "serve")) for _ in range(count)] for name in _VARIANTS}
        try:
            for workers in started.values():
                for worker in workers:
                    worker.measure("live 1")
            yield started
        finally:
            for workers in started.values():
                for worker in workers:
                    worker.end()

    def run_together(self, variant: str, count: int) -> list[dict[str, float]]:
        """Processes that call cuInit and end."""
        started = [self._start(variant, "start") for _ in range(count)]
        return [_numbers(process.communicate()[0]) for process in started]

    def _start(self, variant: str, mode: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environments[variant],
        )


def _numbers(output: str) -> dict[str, float]:
    assert output, "a benchmark program failed"
    return {name: float(number) for name, number in (line.split() for line in output.splitlines())}


def _calls(bench: Bench) -> list[Figure]:
    figures = []

    def measure(name: str, of: Callable[[str], Callable[[], float]], goal: float | None) -> None:
        samples = take_turns({variant: of(variant) for variant in _VARIANTS}, _TURNS)
        figures.extend(_figures(name, samples, goal))

    with bench.workers() as alone:

        def batch(request: str, variant: str) -> Callable[[], float]:
            return partial(alone[variant][0].measure, request)

        for live in _LIVE:
            for variant in _VARIANTS:
                alone[variant][0].measure(f"live {live}")
            measure(f"alloc+free, {live} live", partial(batch, "pair"), _PAIR_NS)
        measure("alloc+free in stream order", partial(batch, "async"), _STREAM_ORDERED_PAIR_NS)
        measure("launch", partial(batch, "launch"), _LAUNCH_NS)
        measure("cuMemGetInfo", partial(batch, "info"), _MEMORY_INFO_NS)
    for count in _THREADS:
        with bench.workers() as threaded:
            measure(
                f"alloc+free, {count} threads",
                lambda variant, count=count, workers=threaded: partial(workers[variant][0].measure, f"threads {count}"),  # type: ignore[misc]
                None,
            )
    with bench.workers(1 + _BESIDE) as crowd:
        measure(
            f"alloc+free, {_BESIDE} processes idle beside it",
            lambda variant: partial(crowd[variant][0].measure, "pair"),
            _BUSY_PAIR_NS,
        )
        measure(
            f"alloc+free, {_BESIDE} processes at once",
            lambda variant: partial(_at_once, crowd[variant][:_BESIDE]),
            _BUSY_PAIR_NS,
        )
    return figures


def _at_once(workers: Sequence[Worker]) -> float:
    for worker in workers:
        worker.ask("pair")
    return statistics.median([worker.answer() for worker in workers])


def _figures(name: str, samples: Mapping[str, Sample], goal: float | None) -> list[Figure]:
    bare, floor, gpuslice = (samples[variant] for variant in _VARIANTS)
    spread = max(sample.spread for sample in samples.values())
    return [
        Figure(name=name, unit="ns", value=gpuslice.low, baseline=bare.low, added_at_most=goal, spread=spread),
        Figure(name="  behind the floor", unit="ns", value=floor.low, baseline=bare.low, spread=spread),
    ]


def _starts(bench: Bench) -> list[Figure]:
    """Wall time per process from start to end with a cuInit in it, and what gpuslice adds to a process's memory."""
    figures, private = [], {}
    for count in _TOGETHER:

        def start(variant: str, count: int = count) -> float:
            begin = time.perf_counter_ns()
            said = bench.run_together(variant, count)
            private[variant] = statistics.median(process["private"] for process in said) / 1024
            return (time.perf_counter_ns() - begin) / count / 1000

        samples = take_turns({variant: partial(start, variant) for variant in ("bare", "gpuslice")}, _START_TURNS)
        figures.append(
            Figure(
                name=f"start of {count} together",
                unit="µs",
                value=samples["gpuslice"].low,
                baseline=samples["bare"].low,
                added_at_most=_START_MICROSECONDS,
                spread=max(sample.spread for sample in samples.values()),
            )
        )
    memory = Figure(
        name="private memory of a process",
        unit="KiB",
        value=private["gpuslice"],
        baseline=private["bare"],
        added_at_most=_MEMORY_KIB,
    )
    return [*figures, memory]


def main() -> int:
    with ExitStack() as stack:
        bench = Bench(stack)
        publish(
            "interposer", "A call (the floor: a counter and a table of pointers, no promises)", "bare", _calls(bench)
        )
        publish("interposer-start", "A process that calls cuInit, from its start to its end", "bare", _starts(bench))
    return 0


if __name__ == "__main__":
    sys.exit(main())
