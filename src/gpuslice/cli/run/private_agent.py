"""An agent for one `gpuslice run`. It ends by itself when that process is gone and its sessions are empty."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice.cli.run import preload
from gpuslice.model.errors import GpusliceError
from gpuslice.node.admin.client import AgentClient

if TYPE_CHECKING:
    from typing import IO

_READY_SECONDS: Final = 30
_MAIN: Final = "from gpuslice.cli.commands.agent import main; main()"


class PrivateAgentError(GpusliceError):
    """Raised when the agent for a run does not come up; nothing runs then."""


def start() -> AgentClient:
    """Starts it with a state folder of its own, and returns when it answers."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="gpuslice-run-", dir=os.environ.get("XDG_RUNTIME_DIR") or None))
    except OSError as error:
        raise _failed(f"{error.filename}: {error.strerror}") from None
    # A configuration of this machine's agent is not that of one program's: it could make it serve the kubelet.
    environment = {name: value for name, value in preload.outside(os.environ).items() if name != "GPUSLICE_CONFIG"}
    log = folder / "agent.log"
    command = [sys.executable, "-P", "-c", _MAIN, "--private-to", str(os.getpid())]
    command += ["--state", str(folder), "--metrics", "none", "--log", "json"]
    with log.open("wb") as errors:
        agent = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,  # what the terminal sends is not for it
        )
    assert agent.stdout is not None
    with agent.stdout as output:
        if not _says_something(output):
            agent.kill()
            agent.wait()
            reason = _last_line(log)
            shutil.rmtree(folder, ignore_errors=True)
            raise _failed(reason)
    return AgentClient.discover(folder, environment)


def _says_something(output: IO[bytes]) -> bool:
    """Its first line says that it is ready; it may also end without one."""
    readable, _, _ = select.select([output], [], [], _READY_SECONDS)
    return bool(readable) and bool(output.readline())


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.strip()), "it says nothing")


def _failed(reason: str) -> PrivateAgentError:
    return PrivateAgentError(f"no agent is running, and one for this program does not start ({reason})")
