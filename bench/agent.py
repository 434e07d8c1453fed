"""What an agent costs: idle with 1,000 sessions and 4,000 processes in them, and how long an attach takes.

`python -m bench.agent` shows a table and writes `bench/results/agent.json`. The processes are `bench/native/attach.c`:
they attach as the interposer does, and then sleep.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from gpuslice.node.admin.client import AgentClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.node.admin.messages import SessionView

_ROOT: Final = Path(__file__).resolve().parent
_RESULTS: Final = _ROOT / "results" / "agent.json"
_GPU: Final = "GPU-11111111-2222-3333-4444-555555555555"
_SESSIONS: Final = 1000
_PROCESSES: Final = 4000
_ATTACHES: Final = 448
_IDLE_SECONDS: Final = 20.0
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class Figure:
    """A number, and what we promise of it."""

    name: str
    value: float
    unit: str
    goal: float | None = None


class Agent:
    """An agent of the benchmark's own, on a folder in memory."""

    def __init__(self, folder: Path) -> None:
        command = [str(Path(sys.executable).parent / "gpuslice"), "agent", "--state", str(folder / "state")]
        command += ["--metrics", "none"]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert "is ready" in self.process.stdout.readline(), (folder / "log").read_text()
        self.client = AgentClient.discover(folder / "state", {})
        self.folder = folder

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        lines = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))

    def state_bytes(self) -> int:
        """What its files take of the machine's memory."""
        return sum(path.stat().st_blocks * 512 for path in (self.folder / "state").rglob("*"))

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.communicate()


class Crowd:
    """Processes that are attached."""

    def __init__(self, program: Path, sessions: Sequence[SessionView], *, together: int) -> None:
        self.process = subprocess.Popen(
            [program, sessions[0].socket, str(together)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("".join(f"{session.id} {session.token}\n" for session in sessions))
        self.process.stdin.close()
        self.nanoseconds = []
        while (line := self.process.stdout.readline()) not in ("ready\n", ""):
            self.nanoseconds.append(int(line))
        assert line == "ready\n", "a process could not attach"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def attach_figures(agent: Agent, program: Path) -> list[Figure]:
    """From one process at a time to many at once: it must stay flat."""
    figures = []
    for together in (1, 8, 64):
        session = agent.client.create("1GiB", gpus=[_GPU])
        before = agent.processor_seconds()
        crowd = Crowd(program, [session] * _ATTACHES, together=together)
        processor = agent.processor_seconds() - before
        crowd.close()
        _wait_until_empty(agent, session)
        agent.client.release(session.id)
        each = sorted(crowd.nanoseconds)
        figures += [
            Figure(f"attach, {together} together, median", statistics.median(each) / 1e6, "ms", 2.0),
            Figure(f"attach, {together} together, 99th percentile", each[int(0.99 * len(each))] / 1e6, "ms"),
            Figure(f"attach, {together} together, the agent's processor time", processor / _ATTACHES * 1e3, "ms"),
        ]
    return figures


def recovery_figures(agent: Agent, program: Path) -> list[Figure]:
    """From SIGKILL of a process until its slot is free."""
    session = agent.client.create("1GiB", gpus=[_GPU])
    taken = []
    for _ in range(50):
        crowd = Crowd(program, [session], together=1)
        began = time.monotonic()
        crowd.close()
        _wait_until_empty(agent, session)
        taken.append(1e3 * (time.monotonic() - began))
    agent.client.release(session.id)
    taken.sort()
    return [
        Figure("a killed process's bytes are back, median", statistics.median(taken), "ms", 50.0),
        Figure("a killed process's bytes are back, slowest of 50", taken[-1], "ms", 50.0),
    ]


def idle_figures(agent: Agent, program: Path) -> list[Figure]:
    sessions = [agent.client.create("1GiB", gpus=[_GPU]) for _ in range(_SESSIONS)]
    began = time.monotonic()
    crowd = Crowd(program, [sessions[number % _SESSIONS] for number in range(_PROCESSES)], together=16)
    attached = time.monotonic() - began
    try:
        time.sleep(2)
        before = agent.processor_seconds()
        time.sleep(_IDLE_SECONDS)
        share = 100 * (agent.processor_seconds() - before) / _IDLE_SECONDS
        resident, files = agent.resident_bytes(), agent.state_bytes()
        began = time.monotonic()
        agent.client.list()
        listed = time.monotonic() - began
    finally:
        crowd.close()
    began = time.monotonic()
    while agent.client.status().processes:
        time.sleep(0.01)
    return [
        Figure(f"idle, {_SESSIONS} sessions, {_PROCESSES} processes: of a core", share, "%", 2.0),
        Figure("idle: memory of the agent and its files", (resident + files) / _MIB, "MiB", 150.0),
        Figure("idle: of that, the agent's own", resident / _MIB, "MiB"),
        Figure(f"attaching {_PROCESSES} processes", attached, "s"),
        Figure(f"listing {_SESSIONS} sessions", listed, "s"),
        Figure(f"clearing {_PROCESSES} processes killed at once", time.monotonic() - began, "s"),
    ]


def _wait_until_empty(agent: Agent, session: SessionView) -> None:
    while agent.client.show(session.id).processes:
        time.sleep(0.0005)


def table(figures: Sequence[Figure]) -> Table:
    shown = Table("figure", title="What an agent costs", title_justify="left")
    for heading in ("value", "goal"):
        shown.add_column(heading, justify="right")
    for figure in figures:
        colour = "" if figure.goal is None else "[green]" if figure.value <= figure.goal else "[red]"
        goal = "" if figure.goal is None else f"≤ {figure.goal:g} {figure.unit}"
        shown.add_row(figure.name, f"{colour}{figure.value:.2f} {figure.unit}", goal)
    return shown


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench.", dir="/dev/shm") as work:
        folder = Path(work)
        program = folder / "attach"
        source = _ROOT / "native" / "attach.c"
        subprocess.run(["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", source, "-o", program], check=True)
        agent = Agent(folder)
        try:
            return [
                *attach_figures(agent, program),
                *recovery_figures(agent, program),
                *idle_figures(agent, program),
            ]
        finally:
            agent.close()


def main() -> int:
    figures = measure()
    Console().print(table(figures))
    _RESULTS.parent.mkdir(exist_ok=True)
    _RESULTS.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
