"""A GPU of the node as it is now: the hardware, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuslice.node.gpus.hardware import Gpu, GpuInstance
    from gpuslice.node.gpus.health import Illness


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """A GPU and all that decides about what is published of it."""

    gpu: Gpu
    #: Instances that others made: what they take is not there to be had.
    foreign: tuple[GpuInstance, ...] = ()
    illness: Illness | None = None
    #: False once switching the MIG mode failed: then only what the GPU's mode allows is published.
    switchable: bool = True
    #: Bytes of it that sessions hold; decides where the next share goes if the policy is to spread.
    load: int = 0
