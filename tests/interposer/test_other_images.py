"""Programs of older and newer images than this machine's: they start as always, and are held to the quota.

They run with all of an image's own libraries and its loader, as in a container of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import gpuslice_cluster
from gpuslice.cli.run import preload
from gpuslice_cluster.images import catalogue, debian
from gpuslice_cluster.images.root_filesystems import compiled
from tests.interposer.node import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.node.admin.messages import SessionView
    from tests.interposer.conftest import Build
    from tests.interposer.node import Node

#: Debian 11 has glibc 2.31, from before threads and dlopen came into libc.so.6; Debian 13 has 2.41.
RELEASES = ("bullseye", "trixie")
LIMIT = 64 * MIB
CUDA_TEST = Path(gpuslice_cluster.__file__).parent / "programs" / "cuda_test.c"
HELD = f"got {LIMIT}\nrefused with 2\n"


class Release(NamedTuple):
    """The files of an image."""

    root: Path

    @property
    def libraries(self) -> Path:
        return debian.library(self.root, "libc.so.6").parent

    @property
    def loader(self) -> Path:
        return next(self.libraries.glob("ld-linux-*.so.*"))

    def run(
        self, environment: Mapping[str, str], *command: str | Path, libraries: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program with the image's loader and libraries."""
        path = ":".join(filter(None, (libraries or str(self.libraries), environment.get("LD_LIBRARY_PATH", ""))))
        return subprocess.run(
            [self.loader, *command],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env={**environment, "LD_LIBRARY_PATH": path},
        )


@pytest.fixture(scope="session", params=RELEASES)
def release(request: pytest.FixtureRequest) -> Release:
    return Release(debian.root(request.param, catalogue.cache()))


@pytest.fixture
def session(node: Node) -> SessionView:
    return node.session(LIMIT)


def test_a_program_of_the_image_that_uses_no_gpu_notices_nothing(
    release: Release, node: Node, session: SessionView
) -> None:
    shell = next(release.root.glob("**/bin/dash"))
    done = release.run(node.inside(session), shell, "-c", "echo $((6 * 7)); exit 3")
    assert (done.stdout, done.stderr, done.returncode) == ("42\n", "", 3)


def test_a_program_that_opens_the_driver_is_held(
    release: Release, node: Node, session: SessionView, tmp_path: Path
) -> None:
    standard = [release.libraries / name for name in ("libc.so.6", "libdl.so.2")]
    program = compiled(CUDA_TEST, tmp_path, standard=standard)
    done = release.run(node.inside(session), program, "fill")
    assert (done.stdout, done.stderr) == (HELD, "")
    assert node.client.show(session.id).gpus[0].peak_bytes == LIMIT


def test_a_program_that_is_linked_with_the_driver_and_opens_nothing_is_held(
    release: Release, node: Node, session: SessionView, build: Build
) -> None:
    """Where dlopen is in a library of its own, such a program does not have that library."""
    driver = node.machine.machine.libraries / "libcuda.so.1"
    flags = ("-nodefaultlibs", driver, release.libraries / "libc.so.6", "-Wl,--allow-shlib-undefined")
    done = release.run(node.inside(session), build("linked.c", *flags, name=f"linked-{release.root.name}"))
    assert (done.stdout, done.stderr) == (HELD, "")


def test_a_program_starts_in_an_image_that_has_no_library_but_the_c_library(
    release: Release, node: Node, session: SessionView, tmp_path: Path
) -> None:
    """As where only what a program needs was copied into an image."""
    alone = tmp_path / "lib"
    alone.mkdir()
    shutil.copy(release.libraries / "libc.so.6", alone / "libc.so.6")
    environment = {name: value for name, value in node.inside(session).items() if name != "LD_LIBRARY_PATH"}
    shell = next(release.root.glob("**/bin/dash"))
    done = release.run(environment, "--inhibit-cache", shell, "-c", "echo started", libraries=str(alone))
    assert (done.stdout, done.stderr, done.returncode) == ("started\n", "", 0)


@pytest.mark.parametrize("kind", ["static", "musl"])
def test_a_program_without_glibc_starts_as_always(kind: str, node: Node, session: SessionView, tmp_path: Path) -> None:
    """No library is put into it, and none that NVIDIA ships could be: such a program has no CUDA driver."""
    source = tmp_path / "starts.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("started"); return 0; }\n')
    compiler = ("cc", "-static") if kind == "static" else ("musl-gcc",)
    program = tmp_path / "starts"
    subprocess.run([*compiler, "-o", program, source], check=True)
    # As in a container: there it is the file that names the libraries, which only glibc's loader reads.
    environment = {name: value for name, value in node.inside(session).items() if name != "LD_PRELOAD"}
    preloading = {"LD_PRELOAD": os.fspath(preload.library_folder() / "libgpuslice.so")} if kind == "static" else {}
    done = subprocess.run([program], check=False, capture_output=True, text=True, env={**environment, **preloading})
    assert (done.stdout, done.stderr, done.returncode) == ("started\n", "", 0)
