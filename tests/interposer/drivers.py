"""Drivers that behave otherwise than the simulator, in front of a copy of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interposer.conftest import Build
    from tests.interposer.node import Node


def in_front_of_the_simulator(source: str, name: str, node: Node, build: Build) -> Path:
    """A driver for GPUSLICE_LIBCUDA: what `source` defines, and the simulator for everything else."""
    simulator = (node.machine.machine.libraries / "libcuda.so.1").read_bytes()
    copy = node.folder / "libodda.so.1"
    copy.write_bytes(simulator.replace(b"libcuda.so.1\0", b"libodda.so.1\0"))
    flags: list[str | Path] = [
        "-shared",
        "-fPIC",
        f'-DBEHIND="{copy}"',
        "-Wl,--no-as-needed",
        copy,
        f"-Wl,-rpath,{node.folder}",
    ]
    return build(source, *flags, name=name)
