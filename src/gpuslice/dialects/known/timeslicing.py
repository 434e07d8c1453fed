"""NVIDIA's time-slicing and MPS: `nvidia.com/gpu.shared: n` is a replica of each of n GPUs, and
`nvidia.com/mig-<profile>.shared: n` of n MIG partitions.

NVIDIA's replicas promise no share: their number only says how many containers use a GPU at a time. Here a replica is an
even part of the memory, as MPS has it, and shares the compute with the others. A replica of a partition is as much of a
shared GPU as an even part of the partition would be: partitions themselves are not shared.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.dialects.dialect import Asked, Dialect, Resource, ResourceFamily
from gpuslice.dialects.known import instaslice
from gpuslice.model import slices
from gpuslice.model.devices import SHARED_SUFFIX, WHOLE_RESOURCE
from gpuslice.model.requests import Request
from gpuslice.model.settings import Setting, number

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said
    from gpuslice.model.settings import Settings

_MOST_REPLICAS: Final = 100

GPU: Final = Resource(f"{WHOLE_RESOURCE}{SHARED_SUFFIX}")
PARTITIONS: Final = ResourceFamily(
    instaslice.PARTITIONS.prefix,
    f"({instaslice.PARTITIONS.form})[.]shared",
    what="a replica of a MIG profile",
    examples=tuple(f"{name}{SHARED_SUFFIX}" for name in instaslice.PARTITIONS.examples),
    suffix=SHARED_SUFFIX,
)
REPLICAS_PER_GPU: Final = Setting(
    "timeslicing.replicasPerGpu",
    10,
    number("a number of replicas", _MOST_REPLICAS),
    description="One nvidia.com/gpu.shared has the memory of a GPU divided by this: the replicas of NVIDIA's plugin.",
)
REPLICAS_PER_PARTITION: Final = Setting(
    "timeslicing.replicasPerPartition",
    2,
    number("a number of replicas", _MOST_REPLICAS),
    description="One nvidia.com/mig-<profile>.shared is as much as a partition of the profile, divided by this.",
)


def _read(said: Said) -> Asked:
    settings = said.reader.settings
    requests = tuple(_request(name, count, settings) for name, count in said.amounts.items())
    return Asked(requests=requests, resources=tuple(said.amounts))


def _request(resource: str, count: int, settings: Settings) -> Request:
    if resource == GPU.name:
        return Request(memory_fraction=Fraction(1, settings.get(REPLICAS_PER_GPU)), devices=count)
    percent, memory = slices.mig_size(instaslice.profile_of(resource.removesuffix(SHARED_SUFFIX)))
    replicas = settings.get(REPLICAS_PER_PARTITION)
    return Request(memory_bytes=memory // replicas, cores=max(1, percent // replicas), devices=count)


DIALECT: Final = Dialect(
    name="timeslicing",
    read=_read,
    prefixes=("nvidia.com/",),
    resources=(GPU,),
    family=PARTITIONS,
    settings=(REPLICAS_PER_GPU, REPLICAS_PER_PARTITION),
)
