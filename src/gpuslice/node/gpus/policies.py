"""What the node's owner says about each GPU: share it, partition it, give it out whole, or keep it.

The section `gpus` of the configuration says it for all nodes that read it (docs/configuration.md).

MIG mode is switched when a pod needs it, on an idle GPU: on to make the first partition, off to share a GPU that has
none left. Where that fails (some GPUs need a reset, which a monitoring agent on them prevents), only what the GPU's
mode allows is published for a while, so that the next pods go elsewhere. With "keep" the agent never switches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuslice.model.gpu_policies import MigMode, Mode, Placement, TaintEffect
from gpuslice.model.gpus import short_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.node.gpus.hardware import Gpu

__all__ = ["GpuPolicies", "MigMode", "Mode", "Placement", "TaintEffect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPolicies:
    """The rules of one node."""

    default: Mode = Mode.SHARE
    placement: Placement = Placement.PACK
    unhealthy: TaintEffect = TaintEffect.NO_SCHEDULE
    mig_mode: MigMode = MigMode.SWITCH
    #: By UUID, index or model.
    gpus: Mapping[str, Mode] = field(default_factory=lambda: MappingProxyType({}))

    def mode(self, gpu: Gpu) -> Mode:
        """What is said about that GPU."""
        return self.mode_of(gpu.uuid, str(gpu.index), gpu.product)

    def mode_of(self, uuid: str, index: str, product: str) -> Mode:
        """What is said about a GPU: its UUID before its index before its model."""
        for name in (uuid, index, short_name(product)):
            if name in self.gpus:
                return self.gpus[name]
        return self.default
