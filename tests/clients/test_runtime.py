"""NVIDIA's CUDA runtime, five versions of it, each with a program that was compiled against its own headers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from tests.native.inside import on_machine
from tests.native.worker import worker

if TYPE_CHECKING:
    from tests.clients.conftest import Clients
    from tests.support import Simulated

SHARED = ("cudart-11.8", "cudart-12.4", "cudart-12.8", "cudart-12.9", "cudart-13")
STATIC = ("cudart-12.9", "cudart-13")
MIB = 1024**2
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation, the driver's CUDA_ERROR_OUT_OF_MEMORY


def build(client: Clients, name: str, folder: Path, *, static: bool = False) -> Path:
    """Compiles runtime.c with that version of the runtime."""
    runtime, program = client(name), folder / "runtime"
    # The older wheels lack crt/; that of CUDA 12.9 fits them.
    complete = runtime if name in STATIC else client("cudart-12.9")
    library = runtime.library("libcudart_static.a" if static else "libcudart.so.*")
    linked = ["-ldl", "-lrt"] if static else [f"-Wl,-rpath,{library.parent}"]
    headers = [f"-I{runtime.headers()}", f"-I{complete.compiler_headers()}"]
    command = ["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *headers, "-pthread", "-o", str(program)]
    source = Path(__file__).with_name("runtime.c")
    done = subprocess.run([*command, source, library, *linked], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.parametrize("name", SHARED)
def test_a_program_gets_what_it_asks_of_the_runtime(
    name: str, client: Clients, simulated: Simulated, tmp_path: Path
) -> None:
    done = simulated("2xA100-40GB").run([build(client, name, tmp_path)])
    assert done.stdout.endswith(" 0 failed\n")


@pytest.mark.parametrize("name", STATIC)
def test_a_program_with_the_runtime_inside_gets_the_same(
    name: str, client: Clients, simulated: Simulated, tmp_path: Path
) -> None:
    program = build(client, name, tmp_path, static=True)
    linked = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    assert "libcudart" not in linked
    done = simulated("2xA100-40GB").run([program])
    assert done.stdout.endswith(" 0 failed\n")


@pytest.mark.parametrize("name", SHARED)
def test_memory_that_another_process_has_is_out_of_memory_at_the_runtime(
    name: str, client: Clients, simulated: Simulated, tmp_path: Path
) -> None:
    machine, program = simulated(), build(client, name, tmp_path)
    with worker(machine) as other:
        assert other.do("allocate", 40000 * MIB) == 0
        assert machine.run([program, "allocate", "1000"]).stdout == f"{OUT_OF_MEMORY}\n"
        assert other.do("free") == 0
        assert machine.run([program, "allocate", "1000"]).stdout == "0\n"


@pytest.fixture(params=SHARED)
def program(request: pytest.FixtureRequest, client: Clients, tmp_path: Path) -> str:
    return str(build(client, request.param, tmp_path))


@on_machine("3xA100-40GB")
def test_a_process_is_on_the_gpu_it_uses_and_on_no_other(program: str) -> None:
    with subprocess.Popen([program, "hold", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        listed = [
            [(found.pid, found.usedGpuMemory) for found in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
            for gpu in map(pynvml.nvmlDeviceGetHandleByIndex, range(3))
        ]
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert listed == [[], [(process.pid, 64 * MIB)], []]
