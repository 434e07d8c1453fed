"""What threads and forked children of one process must not do to each other."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.cli.run import preload
from tests.interposer.drivers import in_front_of_the_simulator
from tests.interposer.node import MIB, OUT_OF_MEMORY

if TYPE_CHECKING:
    from tests.interposer.conftest import Build
    from tests.interposer.node import Node

LIMIT = 64 * MIB
PIECE = 8 * MIB


@pytest.mark.parametrize(
    "kind", ["linear", "async", "own-pool", "physical", "mapped", "graph", "capture-with-free", "array-2d"]
)
def test_a_forked_child_has_none_of_its_parents_memory(kind: str, node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    (block,) = tenant.fill(kind, PIECE, times=1)
    assert tenant.do("fork") == 0
    assert node.held(session) == [PIECE]
    tenant.fill(kind, PIECE, times=1)
    assert block == 0


@pytest.mark.parametrize("kind", ["linear", "async", "own-pool"])
def test_a_child_that_is_forked_while_memory_waits_to_be_freed_in_a_stream(kind: str, node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    (block,) = tenant.fill(kind, PIECE, times=1)
    assert tenant.do("hold-up-stream") == 0
    assert tenant.give("free-async", block) == 0
    assert tenant.do("fork") == 0
    assert tenant.take("linear", LIMIT) == OUT_OF_MEMORY
    assert tenant.do("let-stream-go") == 0


def test_a_child_never_waits_for_what_a_thread_of_its_parent_held(node: Node, build: Build) -> None:
    session = node.session(LIMIT)
    program = build("forks.c", node.machine.machine.libraries / "libcuda.so.1")
    done = node.run([program, "300"], session)
    assert (done.stdout, done.stderr) == ("300 0\n", "")


@pytest.mark.parametrize(
    "function",
    [
        "cuMemCreate",
        "cuMemRelease",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemPoolGetAttribute",
        "cuDeviceGetGraphMemAttribute",
        "cuEventQuery",
    ],
)
def test_a_call_that_blocks_in_the_driver_keeps_no_other_thread_waiting(
    function: str, node: Node, build: Build
) -> None:
    driver = in_front_of_the_simulator("blocking_driver.c", f"blocking-driver-{function}.so", node, build)
    program = build("blocking.c", node.machine.machine.libraries / "libcuda.so.1", "-ldl")
    done = node.run([program, function], node.session(LIMIT), {"GPUSLICE_LIBCUDA": str(driver)})
    assert (done.stdout, done.stderr, done.returncode) == ("free\n", "", 0)


# ---- programs that run with more rights than their user ----

#: A driver of the user's choice: says so when it is loaded.
_OTHER_DRIVER = """
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { (void)!write(1, "loaded\\n", 7); }
"""
_PROGRAM = """
#include <unistd.h>
int cuInit(unsigned int flags);
int main(void) { cuInit(0); (void)!write(1, "ended\\n", 6); }
"""
_NOBODY = 65534


def test_a_set_user_id_program_loads_no_driver_of_its_users_choice(node: Node, build: Build, tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text(_OTHER_DRIVER)
    (tmp_path / "program.c").write_text(_PROGRAM)
    with tempfile.TemporaryDirectory(prefix="gpuslice-test.", dir="/tmp") as name:  # /dev/shm is nosuid
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(build(tmp_path / "other.c", "-shared", "-fPIC", name="other.so"), folder / "other.so")
        shutil.copy(preload.library_folder() / "libgpuslice.so", folder / "libcuda.so.1")
        program = build(tmp_path / "program.c", folder / "libcuda.so.1", f"-Wl,-rpath,{folder}", name="set-user-id")
        shutil.copy(program, folder / "program")
        (folder / "program").chmod(0o4755)
        extra = {"LD_PRELOAD": "", "GPUSLICE_LIBCUDA": str(folder / "other.so")}
        user = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
        done = node.run([*user, folder / "program"], node.session(), extra)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done
