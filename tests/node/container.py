"""A container by hand: a root folder on top of this machine's, a PID namespace, and the edits of CDI devices.

Its root user may not mount, as in the containers of Kubernetes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.interposer.node import Tenant

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What a container runtime leaves to root, and what it does not.
_TAKEN = "-sys_admin,-sys_ptrace,-sys_module,-sys_rawio,-net_admin"


@dataclass
class Container:
    """Programs run in it one after another, or side by side; each has the same mounts."""

    edits: Sequence[dict[str, Any]]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpuslice-test.", dir="/dev/shm"))
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir()

    def start(self, *command: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Starts a program in the container, with pipes. It ends with the test."""
        variables = dict(entry.split("=", 1) for edit in self.edits for entry in edit.get("env", []))
        inside = {"PATH": os.environ["PATH"], **variables, **environment}
        process = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", self._script(), "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=inside,
        )
        self.started.append(process)
        return process

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a program in the container to its end."""
        process = self.start(*command, **environment)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def tenant(self, program: Path, device: int = 0, **environment: str) -> Tenant:
        """tests/interposer/tenant.c with a context."""
        tenant = Tenant(self.start(program, **environment), greets=False)
        assert tenant.read().startswith("ready")
        assert tenant.ask(f"device {device}") == "0"
        return tenant

    def _script(self) -> str:
        root = self.folder / "root"
        overlay = f"lowerdir=/,upperdir={self.folder}/upper,workdir={self.folder}/work"
        # A second program of the container finds the upper layer as the first left it.
        steps = [
            f"mount -t overlay -o {overlay},index=off overlay {root}",
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            f"mount --rbind {tempfile.gettempdir()} {root}{tempfile.gettempdir()}",
        ]
        mounts = {mount["containerPath"]: mount for edit in self.edits for mount in edit.get("mounts", [])}
        for path, mount in mounts.items():
            target, host = shlex.quote(f"{root}{path}"), shlex.quote(mount["hostPath"])
            steps.append(f"mkdir -p $(dirname {target})")
            steps.append(f"if [ -d {host} ]; then mkdir -p {target}; else [ -e {target} ] || : > {target}; fi")
            steps.append(f"mount --rbind {host} {target}")
            if "ro" in mount["options"]:
                steps.append(f"mount -o remount,bind,ro {target}")
        steps.append(f'exec setpriv --bounding-set={_TAKEN} chroot {root} "$@"')
        return "\n".join(steps)

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        shutil.rmtree(self.folder)
