"""NVIDIA's own libraries as tests use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

from tools.client_environments import environment_named

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Client:
    """An installed environment of tests/clients/environments."""

    name: str
    path: Path
    """The folder of packages of a cudart-* environment; otherwise the virtual environment."""
    python: Path
    """The interpreter of a virtual environment."""

    def library(self, pattern: str) -> Path:
        """The one file of that name, for example `libcudart.so.*`."""
        found = sorted(self.path.rglob(pattern))
        assert len(found) == 1, f"{self.path} holds {len(found)} files like {pattern}"
        return found[0]

    def headers(self) -> Path:
        """Where a C program finds cuda_runtime_api.h."""
        return self.library("cuda_runtime_api.h").parent

    def compiler_headers(self) -> Path:
        """Where it finds crt/, which that includes; only cudart-12.9 and cudart-13 have it."""
        return self.library("crt/host_defines.h").parent.parent


class Clients(Protocol):
    """The fixture `client`: the environment of that name."""

    def __call__(self, name: str) -> Client: ...


@pytest.fixture(scope="session")
def client() -> Clients:
    """Gives a client environment; its absence is a failure that says what to run."""

    def get(name: str) -> Client:
        environment = environment_named(name)
        if not environment.is_installed:
            pytest.fail(f"the client environment {name} is not installed: run `make clients`", pytrace=False)
        return Client(name, environment.path, environment.python)

    return get
