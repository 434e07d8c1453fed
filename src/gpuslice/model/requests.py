"""Requests: what a container asked for, free of the dialect it was asked in."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from gpuslice.model.choices import GpuChoice  # noqa: TC001 - msgspec reads the types of fields
from gpuslice.model.errors import GpusliceError


class RequestError(GpusliceError):
    """Raised when a container asks for a GPU in a way that has no meaning. Names the field, the reason and a remedy."""

    def __init__(self, field: str, reason: str, remedy: str = "") -> None:
        super().__init__(f"{field}: {reason}" + (f"; {remedy}" if remedy else ""))
        self.field = field
        self.reason = reason
        self.remedy = remedy


class Request(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A share of each of `devices` GPUs. What is None was not said, and policy or the backend decides it.

    Memory is an amount of bytes or a part of the GPU, cores a percentage of its compute. A MIG profile or a number
    of slots stands alone.
    """

    memory_bytes: int | None = None
    memory_fraction: Fraction | None = None
    cores: int | None = None
    mig_profile: str | None = None
    slots: int | None = None
    devices: int = 1
    gpu_model: str | None = None
    choice: GpuChoice | None = None
    #: Containers of one pod that ask for the same, and say so, hold one slice together.
    shared_in_pod: bool = False


def whole_gpus(devices: int) -> Request:
    """All of the memory and all of the compute of each."""
    return Request(memory_fraction=Fraction(1), cores=100, devices=devices)
