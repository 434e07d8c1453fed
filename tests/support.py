"""What tests hold in their hands: a simulated machine, and a way to run programs on it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gpuslice.simulator.configuration import Driver
    from gpuslice.simulator.machine import Machine

#: What a developer may have set in a shell, and what would change what a test sees.
_FOREIGN = ("CUDA_", "NVIDIA_", "NUMBA_", "GPUSLICE_", "LD_")


@dataclass(frozen=True)
class SimulatedMachine:
    """A machine of the test's own; it goes when the test ends."""

    machine: Machine

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def directory(self) -> Path:
        return self.machine.directory

    def environment(self, **extra: str) -> dict[str, str]:
        """The whole environment of a process on this machine."""
        base = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        return base | self.machine.environment(base) | extra

    def run(
        self,
        args: Sequence[str | Path],
        *,
        check: bool = True,
        timeout: float = 120,
        stdin: str | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on this machine to its end. With `check`, its failure fails the test and shows its output."""
        done = subprocess.run(
            args,
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
            input=stdin,
            env=self.environment(**(extra or {})),
        )
        if check and done.returncode != 0:
            command = " ".join(map(str, args))
            raise AssertionError(f"{command}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, args: Sequence[str | Path], **extra: str) -> subprocess.Popen[str]:
        """Starts a program on this machine, with pipes to its input and output. The caller ends it."""
        return subprocess.Popen(
            args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment(**extra)
        )


class Simulated(Protocol):
    """The fixture `simulated`: makes a machine of those GPUs."""

    def __call__(
        self,
        gpus: str = "1xA100-40GB",
        *,
        context_bytes: int = 0,
        kernel_ns: int = 2000,
        wave_ns: int = 1000,
        driver: Driver | None = None,
    ) -> SimulatedMachine: ...
