"""The devices that a GPU can be published as, and their names. Pure.

A name says which GPU it is by the GPU's UUID and not by its number: a claim outlives a reboot, after which the numbers
may be others'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from gpuslice.node.gpus import counters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuslice.model.mig import MigPlacement, MigProfile
    from gpuslice.node.gpus.hardware import Gpu

_SHORT: Final = 8  # digits of a UUID: enough to tell the GPUs of a node apart


@dataclass(frozen=True, slots=True)
class WholeDevice:
    """A GPU, to be shared or to be had alone."""

    name: str
    gpu: Gpu


@dataclass(frozen=True, slots=True)
class PartitionDevice:
    """A MIG partition that exists while a claim holds it."""

    name: str
    gpu: Gpu
    profile: MigProfile
    placement: MigPlacement


PublishedDevice: TypeAlias = WholeDevice | PartitionDevice


def gpu_names(gpus: Iterable[Gpu]) -> dict[str, str]:
    """By UUID: `gpu-` and the first digits of it, or all where that would name two."""
    digits = {gpu.uuid: gpu.uuid.removeprefix("GPU-").lower() for gpu in gpus}
    short = [text[:_SHORT] for text in digits.values()]
    return {uuid: f"gpu-{text[:_SHORT] if short.count(text[:_SHORT]) == 1 else text}" for uuid, text in digits.items()}


def partitions(gpu: Gpu, gpu_name: str) -> Iterator[PartitionDevice]:
    """Every partition that the GPU could have, with the places to try first first."""
    for profile in gpu.mig_profiles:
        for place in counters.in_order_of_preference(profile, gpu.mig_profiles):
            name = f"{gpu_name}-mig-{counters.label(profile.name)}-{place.start}"
            yield PartitionDevice(name, gpu, profile, place)


def device_named(name: str, gpus: Sequence[Gpu]) -> PublishedDevice | None:
    """What an allocated claim means by the name, whatever the policy is by now; None if the node has it no more."""
    for gpu, gpu_name in zip(gpus, gpu_names(gpus).values(), strict=True):
        if name == gpu_name:
            return WholeDevice(name, gpu)
        if name.startswith(f"{gpu_name}-mig-"):
            return next((device for device in partitions(gpu, gpu_name) if device.name == name), None)
    return None
