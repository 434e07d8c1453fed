"""A simulated machine with the commands of a node on it, as a user has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.node.support import AgentProcess, read_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support import SimulatedMachine

#: A program that allocates on request; see there.
ALLOCATOR: tuple[str, ...] = (sys.executable, str(Path(__file__).with_name("allocator.py")))
TIMEOUT_SECONDS = 60


@dataclass
class Node:
    """The machine, the installed command, and a folder for everything that they make."""

    machine: SimulatedMachine
    command: Path
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    agent: AgentProcess | None = None

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def runtime(self) -> Path:
        """Where private agents have their folders."""
        return self.folder / "runtime"

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        # Wide enough that no table leaves out what a test looks for.
        own = {"GPUSLICE_STATE": str(self.state), "XDG_RUNTIME_DIR": str(self.runtime), "COLUMNS": "300"}
        return self.machine.environment(**(own | dict(extra or {})))

    def start_agent(self, extra: Mapping[str, str] | None = None, *, options: Sequence[str] = ()) -> AgentProcess:
        self.agent = AgentProcess(self.command, self.state, options=list(options), environment=self.environment(extra))
        return self.agent.start()

    @property
    def agent_pid(self) -> int:
        assert self.agent is not None
        return self.agent.pid

    def gpuslice(
        self, *arguments: str, code: int = 0, stdin: str = "", extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end; `code` is how it must end."""
        done = subprocess.run(
            [self.command, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            input=stdin,
            env=self.environment(extra),
        )
        assert done.returncode == code, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - what the command prints
        return json.loads(self.gpuslice(*arguments, "-o", "json").stdout)

    def start(self, *arguments: str, extra: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts the command with pipes. It ends with the test."""
        process = subprocess.Popen(
            [self.command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(extra),
            # As a shell starts it. In a group whose parents are gone, as ours may be, SIGTSTP stops no process.
            process_group=0,
        )
        self.started.append(process)
        return process

    def start_allocator(self, *options: str) -> Allocator:
        return Allocator(self.start("run", *options, "--", *ALLOCATOR))

    def on_terminal(self, *arguments: str, extra: Mapping[str, str] | None = None) -> Terminal:
        """Starts the command on a terminal of its own."""
        return Terminal([str(self.command), *arguments], self.environment({"TERM": "xterm"} | dict(extra or {})))

    def private_agents(self) -> list[int]:
        """The processes that serve a folder of a private agent."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"--private-to" in words and any(word.startswith(bytes(self.runtime)) for word in words):
                found.append(int(folder.name))
        return found

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        if self.agent is not None and self.agent.process is not None and self.agent.process.poll() is None:
            self.agent.stop()


class Allocator:
    """`gpuslice run` with the program that allocates on request in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        word, pid = read_line(process).split()
        assert word == "ready"
        self.pid = int(pid)

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return read_line(self.process)

    def end(self) -> tuple[int, str]:
        """Its exit code, and what was said on standard error."""
        _, errors = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, errors


class Terminal:
    """A command on a terminal: what it shows, and what is typed."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._terminal, inside = os.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=inside, stdout=inside, stderr=inside, env=environment
        )
        os.close(inside)
        self.shown = b""

    def expect(self, text: bytes, *, times: int = 1) -> None:
        """Waits until it was shown so often."""
        while self.shown.count(text) < times:
            assert self._read(), f"ended before it showed {text!r}: {self.shown!r}"

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Its exit code."""
        while self._read():
            pass
        os.close(self._terminal)
        return self._process.wait(TIMEOUT_SECONDS)

    def _read(self) -> bool:
        try:
            content = os.read(self._terminal, 1 << 16)
        except OSError:  # how the end of a terminal is told
            return False
        self.shown += content
        return bool(content)
