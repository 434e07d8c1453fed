"""How long `gpuslice run` takes until its program runs: with an agent and with one that it starts for itself.

The program tells when it began; the baseline is the same program without `gpuslice run`. Variants take turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.figures import Figure, publish
from bench.turns import take_turns
from gpuslice.simulator import configuration, machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_TURNS: Final = 30
_COMMAND: Final = Path(sys.executable).parent / "gpuslice"
_PROGRAM: Final = ("date", "+%s.%N")
_GOALS_MS: Final = {"with an agent": 100.0, "without an agent": 350.0}


def _started_after(command: Sequence[str | Path], environment: Mapping[str, str]) -> Callable[[], float]:
    """Milliseconds from the call to the program's first line."""

    def measure() -> float:
        before = time.time()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return 1000 * (float(done.stdout) - before)

    return measure


@contextmanager
def _agent(environment: Mapping[str, str]) -> Iterator[None]:
    with subprocess.Popen(
        [_COMMAND, "agent", "--metrics", "none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        try:
            yield
        finally:
            agent.terminate()


def measure() -> list[Figure]:
    simulated = machine.create(configuration.from_text("1xA100-40GB", name=f"bench-{os.getpid()}"))
    try:
        with tempfile.TemporaryDirectory(prefix="gpuslice-") as work:
            base = os.environ | simulated.environment(os.environ) | {"XDG_RUNTIME_DIR": work}
            served = base | {"GPUSLICE_STATE": f"{work}/served"}
            run = (_COMMAND, "run", "--limit", "1GiB", "--", *_PROGRAM)
            with _agent(served):
                samples = take_turns(
                    {
                        "program": _started_after(_PROGRAM, base),
                        "with an agent": _started_after(run, served),
                        "without an agent": _started_after(run, base | {"GPUSLICE_STATE": f"{work}/none"}),
                    },
                    _TURNS,
                )
    finally:
        simulated.destroy()
    baseline = samples.pop("program")
    return [
        Figure(
            name=f"start of a program {name}",
            unit="ms",
            value=sample.low,
            baseline=baseline.low,
            spread=sample.spread,
            value_at_most=_GOALS_MS[name],
        )
        for name, sample in samples.items()
    ]


def main() -> int:
    publish("start", "How long `gpuslice run` takes until its program runs", "baseline", measure())
    return 0


if __name__ == "__main__":
    sys.exit(main())
