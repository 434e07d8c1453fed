"""How a GPU looks to Kubernetes: the names that admission asks for and the node agent publishes, in one place.

A GPU is published under DRIVER as one shared device of type `gpu`, with the capacities `memory` and `cores`, and as
its MIG partitions, devices of type `mig`. Of a capacity that a claim does not ask for, a share takes the default
that the agent publishes: all of the memory, and no reserved cores (which leaves the compute unlimited).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

#: The DRA driver, and the domain of its attributes and capacities.
DRIVER: Final = "gpu.gpuslice.io"
GPU_CLASS: Final = "gpu.gpuslice.io"
MIG_CLASS: Final = "mig.gpuslice.io"

ATTRIBUTE_TYPE: Final = "type"
TYPE_GPU: Final = "gpu"
TYPE_MIG: Final = "mig"

#: The users' name of the model (`A100-40GB`), and its maker's.
ATTRIBUTE_MODEL: Final = "model"
ATTRIBUTE_PRODUCT: Final = "product"
#: Of the GPU; a partition gets a UUID when it is made, and has its GPU's as `parentUUID`.
ATTRIBUTE_UUID: Final = "uuid"
ATTRIBUTE_PARENT: Final = "parentUUID"
ATTRIBUTE_ARCHITECTURE: Final = "architecture"
ATTRIBUTE_DRIVER_VERSION: Final = "driverVersion"
ATTRIBUTE_CUDA_VERSION: Final = "cudaVersion"
ATTRIBUTE_INDEX: Final = "index"
ATTRIBUTE_NUMA_NODE: Final = "numaNode"
#: Of a partition: its shape, and the first of its memory slices.
ATTRIBUTE_PROFILE: Final = "profile"
ATTRIBUTE_PLACEMENT: Final = "placement"
#: Kubernetes' own, which devices of other drivers have too.
ATTRIBUTE_PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
ATTRIBUTE_PCI_BUS_ID: Final = "resource.kubernetes.io/pciBusID"

#: On every device of a GPU that is not fit for work.
TAINT_UNHEALTHY: Final = "gpuslice.io/unhealthy"

CAPACITY_MEMORY: Final = "memory"
CAPACITY_CORES: Final = "cores"

#: What the device classes select by, in CEL.
CLASS_SELECTORS: Final = MappingProxyType(
    {
        name: f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].{ATTRIBUTE_TYPE} == "{kind}"'
        for name, kind in ((GPU_CLASS, TYPE_GPU), (MIG_CLASS, TYPE_MIG))
    }
)

#: Memory is given out in steps of this size. Parts of a GPU are rounded down to it, so that they add up to no more
#: than the GPU; amounts of bytes are rounded up, so that no slice has less than was asked.
MEMORY_STEP: Final = 1024**2

#: So many devices a claim can hold, by Kubernetes' own limit.
MAX_DEVICES_PER_CLAIM: Final = 32

#: How the names of claims and claim templates begin that admission makes.
CLAIM_PREFIX: Final = "gpuslice-"

#: A node with one of these has GPUs: NVIDIA's own label, and ours for clusters without it. The value is "true".
NODE_LABELS: Final = ("nvidia.com/gpu.present", "gpuslice.io/gpu-node")

#: The extended resources of the node agent's device plugin: slots of a GPU, and whole GPUs.
SHARED_RESOURCE: Final = "nvidia.com/gpu-shared"
WHOLE_RESOURCE: Final = "nvidia.com/gpu"
SLOTS_PER_GPU: Final = 10
#: In NVIDIA's domain, and no GPU: network cards, as NVIDIA's network operator calls them.
OTHER_RESOURCES: Final = ("nvidia.com/hostdev",)
#: The device classes whose devices are GPUs, or parts of them: ours, and those of NVIDIA's driver.
GPU_CLASSES: Final = (GPU_CLASS, MIG_CLASS, "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com")
#: As NVIDIA's own device plugin calls MIG partitions.
MIG_RESOURCE_PREFIX: Final = "nvidia.com/mig-"
#: And replicas, of partitions and of GPUs, that several containers use at a time.
SHARED_SUFFIX: Final = ".shared"


def mig_resource(profile: str) -> str:
    """The extended resource that stands for a MIG profile. A `+` cannot stand in a resource's name."""
    return MIG_RESOURCE_PREFIX + profile.replace("+", ".")


def pool_name(node: str) -> str:
    """The node's pool. Not the node's name alone: the scheduler of 1.36 mixes up counters of equally named pools."""
    return f"{node}/gpuslice"
