"""Installs NVIDIA's own libraries, several versions side by side, for the tests that run them on the simulator.

Each tests/clients/environments/NAME.txt is a hash-locked environment. It is installed once into a cache outside the
checkout, under a name that holds the lock's hash: a changed lock is a new environment, and checkouts share them. The
CUDA runtimes are bare folders (tests load them from C); the others are virtual environments.

    python tools/client_environments.py [NAME ...]      installs these, or all
    python tools/client_environments.py --path NAME     prints where it is
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOCKS: Final = Path(__file__).resolve().parent.parent / "tests" / "clients" / "environments"


@dataclass(frozen=True)
class Environment:
    """One locked environment and its place in the cache."""

    lock: Path

    @property
    def name(self) -> str:
        return self.lock.stem

    @property
    def is_folder(self) -> bool:
        """A bare folder of packages, with no interpreter of its own."""
        return self.name.startswith("cudart-")

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(self.lock.read_bytes()).hexdigest()[:12]
        # A virtual environment belongs to the interpreter that made it.
        version = "" if self.is_folder else f"-py{sys.version_info.major}{sys.version_info.minor}"
        return cache() / "clients" / f"{self.name}{version}-{digest}"

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.path / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        return self._complete.exists()

    @property
    def _complete(self) -> Path:
        return self.path / ".complete"

    def install(self) -> None:
        """Installs the environment, unless it is there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (self.path.parent / f"{self.path.name}.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # another checkout may be installing it now
            if self.is_installed:
                return
            print(f"==> Installing {self.name} into {self.path}", flush=True)
            shutil.rmtree(self.path, ignore_errors=True)
            pip = [sys.executable, "-m", "pip"]
            if not self.is_folder:
                subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.path], check=True)
                pip += ["--python", str(self.python)]
            command = [*pip, "install", "--quiet", "--require-hashes", "--only-binary", ":all:", "-r", str(self.lock)]
            if self.is_folder:
                command += ["--target", str(self.path)]
            subprocess.run(command, check=True)
            self._complete.touch()


def cache() -> Path:
    """Where downloads and builds that outlive a checkout are kept."""
    return Path(os.environ.get("GPUSLICE_CACHE") or Path.home() / ".cache" / "gpuslice")


def environment_named(name: str) -> Environment:
    """The environment that tests know by this name."""
    environment = Environment(LOCKS / f"{name}.txt")
    if not environment.lock.is_file():
        known = ", ".join(sorted(path.stem for path in LOCKS.glob("*.txt")))
        raise ValueError(f"no client environment is named {name!r}; the known ones are {known}")
    return environment


def main(names: list[str]) -> int:
    try:
        if names[:1] == ["--path"]:
            print(*(environment_named(name).path for name in names[1:]), sep="\n")
            return 0
        environments = [environment_named(name) for name in names or sorted(path.stem for path in LOCKS.glob("*.txt"))]
        for environment in environments:
            environment.install()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: installing failed with code {error.returncode}: see above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
