"""Foreign Python libraries: each runs a program of tests/clients/programs in its own environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.clients.conftest import Clients
    from tests.support import Simulated

PROGRAMS = Path(__file__).with_name("programs")


def run(client: Clients, name: str, simulated: Simulated, program: str) -> None:
    done = simulated().run([client(name).python, PROGRAMS / program], timeout=300)
    assert done.stdout.endswith("done\n")


@pytest.mark.parametrize("bindings", ["bindings-12", "bindings-13"])
def test_cuda_bindings_reach_every_allocator_of_the_driver(
    bindings: str, client: Clients, simulated: Simulated
) -> None:
    run(client, bindings, simulated, "driver_bindings.py")


@pytest.mark.parametrize("bindings", ["bindings-12", "bindings-13"])
def test_cuda_bindings_run_the_runtime_they_bring(bindings: str, client: Clients, simulated: Simulated) -> None:
    run(client, bindings, simulated, "runtime_bindings.py")


def test_numba_finds_a_gpu_copies_arrays_both_ways_and_launches(client: Clients, simulated: Simulated) -> None:
    run(client, "numba-cuda", simulated, "numba_arrays.py")
