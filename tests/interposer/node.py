"""A simulated machine with an agent on it, and programs in its sessions."""

from __future__ import annotations

import select
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuslice.cli.run import preload
from tests.native.inside import python_path
from tests.node.support import AgentProcess
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gpuslice.node.admin.client import AgentClient
    from gpuslice.node.admin.messages import SessionView
    from tests.support import SimulatedMachine

MIB = 1 << 20
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
#: Prints what NVML counts on each GPU, in bytes, one line per line of input.
_OBSERVER = """
import sys, pynvml as n
n.nvmlInit()
devices = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
for line in sys.stdin:
    print(*(n.nvmlDeviceGetMemoryInfo(d).used for d in devices), flush=True)
"""


class Tenant:
    """tenant.c in a session, or any other program that answers lines with lines."""

    def __init__(self, process: subprocess.Popen[str], *, greets: bool = True) -> None:
        self.process = process
        self.blocks = 0
        if greets:
            word, pid, self.initialized = self.read().split()
            assert (word, int(pid)) == ("ready", process.pid)

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.read()

    def take(self, kind: str, count: int) -> int:
        """The driver's code for that many bytes."""
        code = int(self.ask(f"take {kind} {count}"))
        self.blocks += code == 0
        return code

    def fill(self, kind: str, count: int, *, times: int) -> list[int]:
        """The blocks, all of which must be granted."""
        first = self.blocks
        codes = [self.take(kind, count) for _ in range(times)]
        assert codes == [0] * times, f"{kind}: {codes}"
        return list(range(first, self.blocks))

    def give(self, how: str, block: int) -> int:
        return int(self.ask(f"give {how} {block}"))

    def do(self, what: str) -> int:
        return int(self.ask(f"do {what}"))

    def info(self) -> tuple[int, int]:
        """Free and total bytes."""
        code, free, total = map(int, self.ask("info").split())
        assert code == 0
        return free, total

    def close(self) -> str:
        """Ends it; what it said on standard error."""
        try:
            _, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
        return errors or ""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def read(self) -> str:
        """Its next line; it must not have said more than that."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
        assert ready, "the tenant says nothing"
        line = self.process.stdout.readline()
        assert line, f"the tenant ended: {self.close()}"
        return line.rstrip("\n")


@dataclass
class Node:
    """The machine, its agent, and the processes of a test."""

    machine: SimulatedMachine
    command: Path
    folder: Path
    tenant_program: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    agent: AgentProcess | None = None
    _observer: Tenant | None = None

    def start_agent(self, *options: str) -> AgentProcess:
        self.agent = AgentProcess(
            self.command, self.folder / "state", environment=self.machine.environment(), options=list(options)
        )
        return self.agent.start()

    @property
    def client(self) -> AgentClient:
        assert self.agent is not None
        return self.agent.client()

    def session(self, limit: int | str = 64 * MIB, *, grace_seconds: float = 60.0) -> SessionView:
        return self.client.create(limit, grace_seconds=grace_seconds)

    def held(self, session: SessionView) -> list[int]:
        """What the agent says that the session's processes hold, by GPU."""
        return [gpu.held_bytes for gpu in self.client.show(session.id).gpus]

    def inside(self, session: SessionView, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a process in the session."""
        base = self.machine.environment()
        return base | preload.environment(session, base) | dict(extra or {})

    def start(
        self,
        args: Sequence[str | Path],
        session: SessionView | None,
        extra: Mapping[str, str] | None = None,
        *,
        errors: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Starts a program with pipes, in the session or outside of any. It ends with the test."""
        environment = self.machine.environment(**(extra or {})) if session is None else self.inside(session, extra)
        process = subprocess.Popen(
            args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        self.started.append(process)
        return process

    def tenant(
        self,
        session: SessionView,
        *,
        program: Path | None = None,
        device: int | None = 0,
        extra: Mapping[str, str] | None = None,
    ) -> Tenant:
        """A tenant with a context."""
        tenant = Tenant(self.start([program or self.tenant_program], session, extra))
        if device is not None:
            assert tenant.ask(f"device {device}") == "0"
        return tenant

    def run(
        self, args: Sequence[str | Path], session: SessionView, extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program in the session to its end."""
        return subprocess.run(
            args, check=False, capture_output=True, text=True, timeout=120, env=self.inside(session, extra)
        )

    def used(self) -> list[int]:
        """What NVML counts outside, by GPU."""
        if self._observer is None:
            self._observer = Tenant(self.start([sys.executable, "-c", _OBSERVER], None, python_path()), greets=False)
        return [int(word) for word in self._observer.ask("").split()]

    def expect_used(self, *expected: int) -> None:
        """That NVML comes to count that: a process that has just ended is counted for a moment."""
        eventually(lambda: self.used() == list(expected), f"{expected} in use and not {self.used()}")

    def close(self) -> None:
        for process in self.started:
            process.kill()
        for process in self.started:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()
            process.wait()
        if self.agent is not None and self.agent.process is not None and self.agent.process.poll() is None:
            self.agent.stop()
