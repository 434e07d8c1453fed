"""Builds the Kubernetes that the tests, the benchmarks and `gpuslice cluster` run on, from Go modules alone.

Each folder here is a Go module. What it builds lands in a cache outside the checkout, under a name that holds the hash
of its sources: a changed version is a new folder, and checkouts share them. `current` is a link to all that was built
last, where `gpuslice cluster` looks.

    python -m tools.kube build [MODULE ...]     builds these, or those that the tests need
    python -m tools.kube path [VERSION]         prints the folder of programs, those of another Kubernetes
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.client_environments import cache

HERE: Final = Path(__file__).resolve().parent
KUBERNETES_VERSION: Final = "v1.36.3"
#: The oldest that we promise to work on and a newer one, for `make test-versions`.
OTHER_VERSIONS: Final = {"1.31": "v1.31.4", "1.37": "v1.37.0"}
#: kwok is for benchmarks only.
NEEDED_BY_TESTS: Final = ("etcd", "kubernetes", "containerd", "cert-manager")
_SECONDS_BETWEEN_LINES: Final = 20.0


@dataclass(frozen=True)
class Module:
    """A Go module and the programs that are built from it."""

    name: str
    #: By program: the package that it is built from.
    packages: dict[str, str]
    #: Further names of the first program, which looks at the name it is called by.
    names: tuple[str, ...] = ()
    linker_flags: str = "-s -w"
    #: Files beside the programs: by name, the module that has them and the pattern of what they are put together from.
    #: Hashed apart from the rest, so that a module without any is the one that was built before there were such.
    files: dict[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    #: The module whose program it is, where this one has nothing but other versions of what that needs. Hashed apart.
    program_of: str = field(default="", repr=False)

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(repr(self).encode())
        for file in self.files.items():
            digest.update(repr(file).encode())
        sources = [*self.folder.glob("*"), *((HERE / self.program_of).glob("*.go") if self.program_of else ())]
        for source in sorted(sources):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
        return cache() / "kube" / f"{self.name}-{digest.hexdigest()[:12]}"

    def build(self) -> None:
        if self.path.exists():
            return
        if not shutil.which("go"):
            sys.exit("error: building Kubernetes needs Go 1.26 or later on the PATH")
        started = time.monotonic()
        print(f"==> Building {self.name} from its Go modules (once; several minutes on a small machine)", flush=True)
        made = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        made.mkdir(parents=True)
        try:
            for program, package in self.packages.items():
                self._compile(package, made / program)
            for name in self.names:
                (made / name).symlink_to(next(iter(self.packages)))
            for name, (module, pattern) in self.files.items():
                parts = sorted(self._source(module).glob(pattern))
                (made / name).write_text("".join(part.read_text("utf-8") for part in parts), "utf-8")
            made.rename(self.path)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        print(f"    {self.name}: {time.monotonic() - started:.0f} s", flush=True)

    def _source(self, module: str) -> Path:
        """The folder of a module that this one is built with, as Go keeps it."""
        command = ["go", "list", "-m", "-f", "{{.Dir}}", module]
        return Path(subprocess.check_output(command, cwd=self.folder, env=_environment(), text=True).strip())

    def _compile(self, package: str, program: Path) -> None:
        flags = ["-v", "-trimpath", f"-ldflags={self.linker_flags}"]
        if self.program_of:
            flags.append(f"-modfile={self.folder / 'go.mod'}")
        command = ["go", "build", *flags, "-o", str(program), package]
        said: list[str] = []
        shown = time.monotonic()
        compiled = 0
        sources = HERE / (self.program_of or self.name)
        with subprocess.Popen(
            command, cwd=sources, env=_environment(), stderr=subprocess.PIPE, text=True, encoding="utf-8"
        ) as build:
            assert build.stderr is not None
            # With -v it names each package when it has compiled it, and each download.
            for line in build.stderr:
                said = [*said[-40:], line]
                compiled += 1
                if time.monotonic() - shown > _SECONDS_BETWEEN_LINES:
                    shown = time.monotonic()
                    print(f"    {program.name}: {compiled} packages, now {line.strip()}", flush=True)
        if build.returncode:
            sys.exit(f"{''.join(said)}error: {' '.join(command)} failed in {self.folder}")


def _environment() -> dict[str, str]:
    """The user's environment may have flags for Go; the cache must not depend on them."""
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}


_VERSION: Final = "k8s.io/component-base/version"
_CONTAINERD: Final = "github.com/containerd/containerd/v2"


def _kubernetes(name: str, version: str) -> Module:
    return Module(
        name,
        {"kubernetes": "."},
        program_of="" if (HERE / name / "main.go").exists() else "kubernetes",
        names=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl"),
        # Without them it calls itself v0.0.0, which kubectl and the kubelet's skew checks do not like.
        linker_flags=f"-s -w -X {_VERSION}.gitVersion={version} "
        f"-X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor={version.split('.')[1]}",
    )


MODULES: Final = {
    module.name: module
    for module in (
        _kubernetes("kubernetes", KUBERNETES_VERSION),
        *(_kubernetes(f"kubernetes-{minor}", version) for minor, version in OTHER_VERSIONS.items()),
        Module("etcd", {"etcd": "."}),
        Module(
            "containerd",
            {name: f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
            linker_flags=f"-s -w -X {_CONTAINERD}/version.Version=v2.4.2",
        ),
        Module(
            "cert-manager",
            {"cert-manager": "."},
            files={"cert-manager.yaml": ("github.com/cert-manager/cert-manager", "deploy/crds/cert-manager.io_*.yaml")},
        ),
        Module("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    )
}


def programs(version: str = "") -> Path:
    """The folder in which all programs that are built lie under their names; with Kubernetes of that minor version."""
    return cache() / "kube" / (f"current-{version}" if version in OTHER_VERSIONS else "current")


def build(names: tuple[str, ...] = NEEDED_BY_TESTS) -> None:
    folder = cache() / "kube"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in names:
            MODULES[name].build()
        for version in ("", *OTHER_VERSIONS):
            _link(version)


def _link(version: str) -> None:
    """Makes the folder anew beside the old one and swaps them, so that no process finds half of it."""
    others = {f"kubernetes-{each}" for each in OTHER_VERSIONS if each != version}
    # Of two with a program of the same name the later counts: those of the version that is wanted.
    built = [module for module in MODULES.values() if module.path.exists() and module.name not in others]
    wanted = {program.name: program for module in built for program in module.path.iterdir()}
    current = programs(version)
    if version and not MODULES[f"kubernetes-{version}"].path.exists():
        return
    if current.exists() and {program.name: program.readlink() for program in current.iterdir()} == wanted:
        return
    made = current.with_name(f"programs.{hashlib.sha256(repr(sorted(wanted.items())).encode()).hexdigest()[:12]}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    for name, program in wanted.items():
        (made / name).symlink_to(program)
    link = current.with_name(f"{current.name}.{os.getpid()}")
    link.symlink_to(made.name)
    link.rename(current)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["path"]:
            print(programs())
        case ["path", version] if version in (*OTHER_VERSIONS, KUBERNETES_VERSION[1:5]):
            print(programs(version))
        case ["build", *names]:
            unknown = [name for name in names if name not in MODULES]
            if unknown:
                print(f"error: no module {', '.join(unknown)}; there are {', '.join(MODULES)}", file=sys.stderr)
                return 2
            build(tuple(names) or NEEDED_BY_TESTS)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
