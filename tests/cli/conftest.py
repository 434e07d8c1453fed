"""A node for the tests of its commands."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Simulated


@pytest.fixture
def lonely_node(simulated: Simulated, gpuslice_command: Path) -> Iterator[Node]:
    """A machine with two GPUs and no agent."""
    # A socket's path has at most 107 characters: the folder's must be short.
    folder = Path(tempfile.mkdtemp(prefix="gpuslice-test-"))
    (folder / "runtime").mkdir(mode=0o700)
    node = Node(simulated("2xA100-40GB"), gpuslice_command, folder)
    yield node
    node.close()
    shutil.rmtree(folder)


@pytest.fixture
def node(lonely_node: Node) -> Node:
    """A machine with two GPUs and an agent."""
    lonely_node.start_agent()
    return lonely_node
