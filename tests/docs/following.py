"""A document, followed as a reader does: what it says to type is typed, and what it shows must come."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0
_FOREIGN = ("CUDA_", "NVIDIA_", "GPUSLICE_", "LD_", "XDG_", "COLUMNS")


@dataclass
class Step:
    """A command, and the lines that must come, in this order. In them, `...` stands for anything."""

    command: str
    expected: list[str] = field(default_factory=list)


def steps(document: Path) -> list[Step]:
    """What the document's console blocks say. As in a shell, `> ` goes on with a command."""
    found: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:]))
            elif line.startswith("> ") and not found[-1].expected:
                found[-1].command += f"\n{line[2:]}"
            else:
                found[-1].expected.append(line)
    return found


def follow(guide: list[Step], gpuslice: Path, folder: Path, replacements: Mapping[str, str]) -> None:
    """Does what the guide says, in one shell. What would meet others on this machine is replaced in all of it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environment["PATH"] = f"{gpuslice.parent}:{environment['PATH']}"
    shell = Shell(folder, environment)
    try:
        for step, following in zip(guide, [*guide[1:], Step("")], strict=True):
            for text, replacement in replacements.items():
                step.command = step.command.replace(text, replacement)
                step.expected = [line.replace(text, replacement) for line in step.expected]
            code = shell.follow(step)
            # A failure is shown as one; everything else succeeds.
            assert code == 0 or "echo $?" in (following.command, step.command) or following.command == "wait $!", step
    finally:
        shell.close()


class Shell:
    """One shell for the whole document, as a reader has one."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
        )
        self._output = b""

    def follow(self, step: Step) -> int:
        """Types the command, and waits for its end and for the lines. Returns its exit code."""
        mark = f"---{time.monotonic_ns()}---"
        # The code is kept for a command that asks for it.
        self._type(f"{step.command}\ncode=$?; echo {mark} $code; (exit $code)\n")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (code := _code(self._lines(), mark)) is None or not _shows(self._lines(), step.expected):
            shown = "\n".join(self._lines())
            remaining = deadline - time.monotonic()
            assert code is None or remaining > 0, f"{step.command}\ndid not show {step.expected}, but\n{shown}"
            assert remaining > 0, f"{step.command}\ndid not end\n{shown}"
            self._read(min(remaining, 1.0))
        self._output = b""
        return code

    def close(self) -> None:
        """Ends the shell and whatever it started."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def _lines(self) -> list[str]:
        return self._output.decode().splitlines()

    def _type(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text.encode())
        self._shell.stdin.flush()

    def _read(self, seconds: float) -> None:
        assert self._shell.stdout is not None
        readable, _, _ = select.select([self._shell.stdout], [], [], seconds)
        if readable:
            content = os.read(self._shell.stdout.fileno(), 1 << 16)
            assert content, f"the shell ended: {self._output.decode()}"
            self._output += content


def _code(lines: list[str], mark: str) -> int | None:
    return next((int(line.split()[1]) for line in lines if line.startswith(mark) and len(line.split()) == 2), None)


def _shows(lines: list[str], expected: list[str]) -> bool:
    """Whether the expected lines are among the others, in this order."""
    rest = iter(lines)
    return all(any(_pattern(wanted).fullmatch(line.strip()) for line in rest) for wanted in expected)


def _pattern(expected: str) -> re.Pattern[str]:
    words = (re.escape(word).replace(re.escape("..."), ".*") for word in expected.split())
    return re.compile(r"\s+".join(words))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
