"""An agent and tenants of a test: real processes, ended with the test."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.node.admin.client import AgentClient
from gpuslice.node.sessions import page
from tests.native.inside import python_path
from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.node.admin.messages import SessionView

GPU = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_GPU = "GPU-66666666-7777-8888-9999-000000000000"
TENANT = Path(__file__).with_name("tenant.py")
_FOREIGN = ("CUDA_", "NVIDIA_", "GPUSLICE_", "LD_", "XDG_")


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment of this process without what would change what an agent does."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)} | extra


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that the process prints."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    assert poll.poll(1000 * PATIENCE_SECONDS), f"{process.args!r} says nothing"
    return process.stdout.readline().rstrip("\n")


@dataclass
class AgentProcess:
    """`gpuslice agent` on a state folder. It may be killed and started again."""

    command: Path
    state: Path
    environment: Mapping[str, str] = field(default_factory=clean_environment)
    options: list[str] = field(default_factory=list)
    limit_descriptors: int | None = None
    process: subprocess.Popen[str] | None = None
    _client: AgentClient | None = None
    _log_start: int = 0

    @property
    def audit_log(self) -> Path:
        return self.state.parent / "audit.jsonl"

    @property
    def log(self) -> Path:
        return self.state.parent / "agent.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def arguments(self) -> list[str | Path]:
        named: list[str | Path] = ["--state", self.state, "--audit-log", self.audit_log, "--log", "json"]
        metrics = [] if "--metrics" in self.options else ["--metrics", "none"]
        limited = ["prlimit", f"--nofile={self.limit_descriptors}"] if self.limit_descriptors else []
        return [*limited, self.command, "agent", *named, *metrics, *self.options]

    def start(self) -> AgentProcess:
        with self.log.open("a") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self.arguments(), stdout=subprocess.PIPE, stderr=log, text=True, env=dict(self.environment)
            )
        line = read_line(self.process)
        assert "is ready" in line, line + self.log.read_text()
        return self

    def kill(self) -> None:
        """As an out-of-memory killer does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._close()

    def stop(self) -> int:
        """As a service manager does."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_SECONDS)
        self._close()
        return code

    def _close(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self._client is not None:
            self._client.close()

    def is_idle(self) -> bool:
        """Whether it takes less than half of a core."""
        before = self._processor_seconds()
        time.sleep(0.5)
        return self._processor_seconds() - before < 0.25

    def _processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def client(self) -> AgentClient:
        if self._client is None:
            self._client = AgentClient.discover(self.state, self.environment)
        return self._client

    def create(self, limit: str | int = "1GiB", **options: Any) -> SessionView:  # noqa: ANN401 - the client's
        options.setdefault("gpus", [GPU])
        return self.client().create(limit, **options)

    def audit(self, operation: str = "") -> list[dict[str, Any]]:
        """The audit lines, of that operation. A running agent answers after it wrote what happened before."""
        if self.process is not None and self.process.poll() is None:
            self.client().status()
        lines = self.audit_log.read_text().splitlines() if self.audit_log.exists() else []
        events = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        return [event for event in events if operation in ("", event["operation"])]

    @property
    def metrics_port(self) -> int:
        """Where it serves metrics: with `--metrics 127.0.0.1:0` the kernel chose, and the log tells, in time."""
        latest = time.monotonic() + PATIENCE_SECONDS
        while True:
            lines = self.log.read_bytes()[self._log_start :].splitlines(keepends=True)
            told = [msgspec.json.decode(line) for line in lines if line.startswith(b"{") and line.endswith(b"\n")]
            ports: list[int] = [line["port"] for line in told if line["event"] == "serves metrics and health"]
            if ports:
                return ports[-1]
            assert time.monotonic() < latest, "the agent does not say where it serves metrics"
            time.sleep(0.01)

    def metrics(self) -> dict[str, float]:
        """The samples by name, with labels as they are written."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


@dataclass
class TenantProcess:
    """tests/node/tenant.py in a session."""

    process: subprocess.Popen[str]
    status: int
    slot: int
    message: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, *command: str | int) -> str:
        """What it answers to the command."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()
        answer = read_line(self.process)
        assert answer.startswith("ok"), f"{command}: {answer}"
        return answer.removeprefix("ok").strip()

    def say(self, *command: str | int) -> None:
        """A command that is not answered."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()

    def control(self) -> tuple[int, int, int, int, int]:
        """State, limit, slots, heartbeat, epoch: what its control page says."""
        state, limit, slots, heartbeat, epoch = self.do("control").strip("()").split(",")
        return int(state), int(limit), int(slots), int(heartbeat), int(epoch)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue


def start_tenant(
    session: SessionView,
    *,
    token: str | None = None,
    user: int | None = None,
    wrapper: tuple[str, ...] = (),
    program: Path = TENANT,
) -> TenantProcess:
    """A tenant that has been answered, whatever the answer."""
    arguments = [sys.executable, str(program)]
    arguments += [session.socket, session.id, session.token if token is None else token]
    arguments += [] if user is None else [str(user)]
    process = subprocess.Popen(
        [*wrapper, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(**python_path()),
    )
    status, slot, message = read_line(process).split(" ", 2)
    return TenantProcess(process, int(status), -1 if int(slot) == page.NO_SLOT else int(slot), message)
