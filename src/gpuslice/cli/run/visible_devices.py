"""Which GPUs CUDA_VISIBLE_DEVICES names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.node.admin.messages import InventoryGpu


def named_gpus(value: str, machine: Sequence[InventoryGpu], *, by_bus: bool) -> list[str]:
    """Their UUIDs, as CUDA reads the variable: up to the first entry that names none.

    Empty if it names no GPU, or if it cannot be told which: by default CUDA counts the fastest first, and only
    it knows which that is where models differ. A session on all GPUs is right then, because the variable still decides
    what the program sees.
    """
    machine = [gpu for gpu in machine if not gpu.lost]
    whole = [gpu for gpu in machine if not gpu.mig]
    counted = by_bus or len({gpu.model for gpu in whole}) <= 1
    found: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdecimal():
            if not counted:
                return []
            gpu = next((gpu for gpu in whole if gpu.index == str(int(entry))), None)
        else:
            candidates = [gpu for gpu in machine if entry.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(entry)]
            gpu = candidates[0] if len(candidates) == 1 else None
        if gpu is None or gpu.uuid in found:
            break
        found.append(gpu.uuid)
    return found
