"""A simulated machine with an agent, and tenants of its sessions."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.clients.conftest import client
from tests.interposer.node import Node
from tests.native.building import cuda_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support import Simulated

FOLDER = Path(__file__).parent
__all__ = ["client"]  # a fixture of tests/clients


class Build(Protocol):
    """The fixture `build`: makes a program of a C source of this folder, once for all tests."""

    def __call__(self, source: str | Path, *flags: str | Path, name: str = "") -> Path: ...


class MakeNode(Protocol):
    """The fixture `make_node`: a machine of those GPUs with an agent."""

    def __call__(self, gpus: str = ..., *, context_bytes: int = ..., options: Sequence[str] = ...) -> Node: ...


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("programs")

    def make(source: str | Path, *flags: str | Path, name: str = "") -> Path:
        program = folder / (name or Path(source).stem)
        if not program.exists():
            command = ["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"]
            command += [f"-I{cuda_headers()}", "-o", str(program), str(FOLDER / source), *map(str, flags), "-pthread"]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        return program

    return make


@pytest.fixture
def make_node(simulated: Simulated, gpuslice_command: Path, build: Build) -> Iterator[MakeNode]:
    """Makes machines with an agent; everything on them ends with the test."""
    nodes: list[Node] = []

    def make(gpus: str = "1xT4", *, context_bytes: int = 0, options: Sequence[str] = ()) -> Node:
        # A socket's path has at most 107 characters: the folder's must be short.
        folder = Path(tempfile.mkdtemp(prefix="gpuslice-test.", dir="/dev/shm"))
        nodes.append(
            Node(simulated(gpus, context_bytes=context_bytes), gpuslice_command, folder, build("tenant.c", "-ldl"))
        )
        nodes[-1].start_agent(*options)
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()
        shutil.rmtree(node.folder)


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """A machine with one small GPU and an agent."""
    return make_node()
