"""A cluster by name: brought up, looked at, and taken down."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice.model.errors import GpusliceError
from gpuslice_cluster import components, reservations
from gpuslice_cluster import node as nodes
from gpuslice_cluster.binaries import program
from gpuslice_cluster.control_plane import GPUSLICE_WEBHOOKS, Layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice_cluster.components import Component, State, Status

_SECONDS_TO_STOP: Final = 60.0
_SUPERVISOR: Final = "gpuslice_cluster.supervisor"
#: The descriptor that a supervisor keeps open.
_KEPT: Final = 3


class ClusterError(GpusliceError):
    """Raised when a cluster cannot be brought up or reached."""


def clusters_folder() -> Path:
    """Where clusters keep what they are made of."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "gpuslice" / "clusters"


#: Below those that connections are given: one of these could have such a port before its listener.
_PORTS: Final = 20_000, 32_000


def free_ports(count: int) -> tuple[int, ...]:
    """Ports without a listener at this moment, of those that the kernel gives no connection. They differ."""
    found: dict[int, None] = {}
    while len(found) < count:
        port = random.randrange(*_PORTS)  # noqa: S311 - others choose at the same time
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            found[port] = None
    return tuple(found)


def new_layout(folder: Path, address: str = "127.0.0.1", webhooks: tuple[str, ...] = ()) -> Layout:
    """A control plane in this folder, on ports that are free. It proves who it is to these webhooks as well."""
    first, second, third, fourth, fifth = free_ports(5)
    ports = first, second, third, fourth, fifth
    return Layout(folder=folder, ports=ports, address=address, webhooks=(*GPUSLICE_WEBHOOKS, *webhooks))


@dataclass(frozen=True)
class Cluster:
    """A folder with a plan, and the supervisor that carries it out."""

    folder: Path

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def status(self) -> Status | None:
        """None if it is not running."""
        status = components.read_status(self.folder)
        if status is None or status.failure:
            return status
        return status if _is_supervisor(status.supervisor, self.folder) else None

    def states(self) -> tuple[State, ...]:
        """How its components do, those of its node included. Process numbers of the node's are those in the node."""
        status = self.status()
        if status is None:
            return ()
        inside = components.read_status(self.folder / nodes.FOLDER)
        running = any(state.name == nodes.COMPONENT and state.pid for state in status.components)
        return (*status.components, *(inside.components if inside is not None and running else ()))

    def start(
        self,
        plan: tuple[Component, ...],
        *,
        owner: int | None = None,
        keep: int | None = None,
        progress: Callable[[Status], None] = lambda _: None,
    ) -> None:
        """Starts the supervisor and returns when all is ready. Raises ClusterError with the end of a log if it fails.

        With an owner, the cluster ends when that process does. A descriptor to `keep` is open as long as it runs.
        """
        components.write(self.folder / components.PLAN, components.Plan(plan))
        (self.folder / components.STATUS).unlink(missing_ok=True)
        supervisor = self._spawn(owner, keep)
        try:
            self._wait_until_ready(supervisor, progress)
        except BaseException:  # an interruption, too: only this process knows yet that there is a supervisor
            _end(supervisor)
            raise

    def _wait_until_ready(self, supervisor: int, progress: Callable[[Status], None]) -> None:
        seen = None
        while True:
            status = components.read_status(self.folder)
            if status is not None and status != seen:
                seen = status
                progress(status)
                if status.is_ready:
                    return
            if os.waitid(os.P_PID, supervisor, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                raise ClusterError(self._why(seen))
            time.sleep(0.05)

    def _spawn(self, owner: int | None, keep: int | None) -> int:
        """Not by `subprocess`, which warns when a process outlives its Popen object: the supervisor is meant to."""
        arguments = [sys.executable, "-m", _SUPERVISOR, str(self.folder)]
        log = os.open(self.folder / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return os.posix_spawn(
                sys.executable,
                [*arguments, *([] if owner is None else [str(owner)])],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    *([] if keep is None else [(os.POSIX_SPAWN_DUP2, keep, _KEPT)]),
                ],
                setsid=True,
            )
        finally:
            os.close(log)

    def stop(self) -> None:
        """Stops everything; nothing to do if nothing runs."""
        status = components.read_status(self.folder)
        if status is None or not _is_supervisor(status.supervisor, self.folder):
            return
        _end(status.supervisor)

    def remove(self) -> None:
        """Stops everything and forgets the cluster, also after its processes were killed."""
        self.stop()
        if os.geteuid() == 0:  # without, there can have been no node
            reservations.take_back(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002  # as subprocess calls it
        """What kubectl prints, as the administrator. Raises ClusterError with what it said if it fails."""
        result = subprocess.run(
            [program("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=input,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def _why(self, status: Status | None) -> str:
        lines: list[str] = [status.failure if status and status.failure else "the supervisor ended"]
        inside = components.read_status(self.folder / nodes.FOLDER)
        for state in (*(status.components if status else ()), *(inside.components if inside else ())):
            if state.state not in {"ready", "waiting"}:
                lines += [f"{state.name}: {state.detail or state.state}; the end of its log:"]
                lines += [f"    {line}" for line in components.last_lines(self.folder, state.name)]
        lines.append(f"all logs are in {self.folder / components.LOGS}")
        return "\n".join(lines)


def end_all_of(owner: int) -> None:
    """Ends every cluster that is to end with this process, and returns when they have."""
    for entry in Path("/proc").glob("[0-9]*"):
        arguments = _arguments(int(entry.name))
        if _SUPERVISOR.encode() in arguments and arguments[-1] == str(owner).encode():
            with contextlib.suppress(ProcessLookupError):
                _end(int(entry.name))


def _is_supervisor(pid: int, folder: Path) -> bool:
    """Whether this process is the supervisor of this folder, and not another that was given its number."""
    arguments = _arguments(pid)
    return str(folder).encode() in arguments and _SUPERVISOR.encode() in arguments


def _arguments(pid: int) -> list[bytes]:
    """What the process was started with; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []


def _end(supervisor: int) -> None:
    descriptor = os.pidfd_open(supervisor)
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        _wait_for(descriptor, supervisor)
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, pid: int) -> None:
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(_SECONDS_TO_STOP * 1000):
        raise ClusterError(f"supervisor {pid}: still stopping after {_SECONDS_TO_STOP:.0f} s")
    with contextlib.suppress(ChildProcessError):  # ours to reap if we started it
        os.waitpid(pid, 0)
