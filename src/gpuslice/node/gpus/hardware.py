"""The GPUs of a node as data: what `inventory` reads from NVML and `resource_slices` publishes. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuslice.model.mig import MigPlacement, MigProfile


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A part of a GPU that exists now. `mig_uuids` are its compute instances, as devices of their own."""

    profile: str
    placement: MigPlacement
    mig_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU. What NVML does not tell of it is None."""

    index: int
    uuid: str
    #: As its maker calls it: "NVIDIA A100-SXM4-40GB".
    product: str
    memory_bytes: int
    architecture: str
    #: Both as semantic versions, so that they can be compared in CEL.
    driver_version: str
    cuda_version: str
    pci_bus_id: str
    pcie_root: str | None = None
    numa_node: int | None = None
    mig_enabled: bool = False
    #: What it can be partitioned into: nothing on a GPU without MIG.
    mig_profiles: tuple[MigProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()

    @property
    def mig_capable(self) -> bool:
        return bool(self.mig_profiles)

    def profile_named(self, name: str) -> MigProfile | None:
        """The profile of that name, if this GPU has it."""
        return next((profile for profile in self.mig_profiles if profile.name == name), None)
