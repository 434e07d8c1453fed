"""How a GPU looks to Kubernetes: the names that admission asks for and the node agent publishes, in one place.

A GPU is published under DRIVER as one shared device of type `gpu`, with the capacities `memory` and `cores`, and as
its MIG partitions, devices of type `mig`. Of a capacity that a claim does not ask for, a share takes the default
that the agent publishes: all of the memory, and no reserved cores (which leaves the compute unlimited).
"""

from __future__ import annotations

from typing import Final

#: The DRA driver, and the domain of its attributes and capacities.
DRIVER: Final = "gpu.gpuslice.io"
GPU_CLASS: Final = "gpu.gpuslice.io"
MIG_CLASS: Final = "mig.gpuslice.io"

ATTRIBUTE_MODEL: Final = "model"
ATTRIBUTE_PROFILE: Final = "profile"
ATTRIBUTE_UUID: Final = "uuid"
CAPACITY_MEMORY: Final = "memory"
CAPACITY_CORES: Final = "cores"

#: Memory is given out in steps of this size. Parts of a GPU are rounded down to it, so that they add up to no more
#: than the GPU; amounts of bytes are rounded up, so that nobody gets less than was asked.
MEMORY_STEP: Final = 1024**2

#: So many devices a claim can hold, by Kubernetes' own limit.
MAX_DEVICES_PER_CLAIM: Final = 32

#: The extended resources of the node agent's device plugin: slots of a GPU, and whole GPUs.
SHARED_RESOURCE: Final = "nvidia.com/gpu-shared"
WHOLE_RESOURCE: Final = "nvidia.com/gpu"
SLOTS_PER_GPU: Final = 10
