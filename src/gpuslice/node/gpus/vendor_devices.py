"""The CDI devices of the GPUs themselves: NVIDIA's toolkit writes them, and on a simulated machine the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.node.gpus.nvml import Nvml, NvmlUnavailableError
from gpuslice.simulator import cdi as simulated_devices
from gpuslice.simulator import machine as machines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class VendorDevices:
    """What a container needs to reach a GPU or a MIG device at all."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        simulated = environment.get(machines.VARIABLE)
        self._machine = machines.find(simulated) if simulated else None

    def refresh(self) -> None:
        """Writes them anew: MIG devices come and go. Waits for NVML."""
        if self._machine is None:
            return
        try:
            uuids = [gpu.uuid for gpu in Nvml().inventory()]
        except NvmlUnavailableError:
            return
        simulated_devices.write(self._machine, uuids, self._folder)
