"""The node's GPUs over time: what they are, what is wrong with them, and telling the cluster of every change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.node.gpus import inventory
from gpuslice.node.gpus.gpu_state import GpuState
from gpuslice.node.gpus.policies import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gpuslice.node.gpus.hardware import Gpu, GpuInstance
    from gpuslice.node.gpus.health import Health
    from gpuslice.node.gpus.partitions import Partitions
    from gpuslice.node.gpus.policies import GpuPolicies

_REFRESH_SECONDS: Final = 10.0
_XID_WAIT_MILLISECONDS: Final = 500


def no_load() -> Mapping[str, int]:
    return {}


class Fleet:
    """Everything that is known of the GPUs. Its calls wait for NVML, and are made by one thread at a time."""

    def __init__(
        self,
        policies: GpuPolicies,
        partitions: Partitions,
        health: Health,
        *,
        load: Callable[[], Mapping[str, int]] = no_load,
        sysfs: Path = inventory.SYSFS,
    ) -> None:
        self.policies: Final = policies
        self.health: Final = health
        self._partitions = partitions
        self._load = load
        self._sysfs = sysfs
        #: As they were when they last answered: one that is lost is still known, and published as unfit.
        self._known: dict[str, Gpu] = {}

    @property
    def gpus(self) -> list[Gpu]:
        """What `published_devices.device_named` needs to find the device of a claim."""
        return list(self._known.values())

    def refresh(self) -> list[GpuState]:
        """Looks at the GPUs."""
        answering = inventory.read(self._sysfs)
        self.health.compare(self._known, answering)
        self._known |= {gpu.uuid: gpu for gpu in answering}
        illnesses = self.health.illnesses()
        load = self._load() if self.policies.placement is Placement.SPREAD else {}  # else it changes nothing
        return [
            GpuState(
                gpu=gpu,
                foreign=self._foreign(gpu),
                illness=illnesses.get(gpu.uuid),
                switchable=gpu.uuid not in self._partitions.unswitchable,
                load=load.get(gpu.uuid, 0),
            )
            for gpu in sorted(self._known.values(), key=lambda gpu: gpu.index)
        ]

    def _foreign(self, gpu: Gpu) -> tuple[GpuInstance, ...]:
        ours = {(one.profile, one.start) for one in self._partitions.ours() if one.gpu_uuid == gpu.uuid}
        return tuple(one for one in gpu.instances if (one.profile, one.placement.start) not in ours)
