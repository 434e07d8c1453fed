"""Slices: what a container gets, after policy has had its say. Complete, where a request may leave things open."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.model import gpus
from gpuslice.model.choices import GpuChoice  # noqa: TC001 - msgspec reads the types of fields
from gpuslice.model.devices import MEMORY_STEP, MIG_RESOURCE_PREFIX
from gpuslice.model.values import kubernetes_quantities

if TYPE_CHECKING:
    from collections.abc import Sequence


#: Of a GPU that MIG can partition: 7, or 4.
_FEWEST_COMPUTE_SLICES: Final = 4
_GIB: Final = 1024**3
#: Compute slices and memory, and what sets the profile apart; what follows names ways of sharing the partition.
_MIG_RESOURCE: Final = re.compile(
    re.escape(MIG_RESOURCE_PREFIX) + r"([1-7]g[.][1-9][0-9]{0,2}gb)(?:[.-](me[.]all|me|gfx))?(?:[.]shared)?$", re.ASCII
)


class Slice(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A share of each of `devices` GPUs, a MIG partition, or a number of slots."""

    #: Bytes, or a part of whichever GPU it is.
    memory: int | Fraction = Fraction(1)
    #: Percent of the GPU's compute; 0 reserves and limits nothing.
    cores: int = 0
    mig_profile: str | None = None
    slots: int | None = None
    devices: int = 1
    gpu_model: str | None = None
    choice: GpuChoice | None = None
    shared_in_pod: bool = False

    @property
    def whole(self) -> bool:
        """No other slice fits beside it."""
        alone = self.cores == 100 and self.mig_profile is None and self.slots is None
        return alone and isinstance(self.memory, Fraction) and self.memory == 1

    def describe(self) -> str:
        """For people, on the pod: `4Gi memory, 30% cores`."""
        of_model = f" of {gpus.with_article(self.gpu_model)}" if self.gpu_model else ""
        if self.choice is not None:
            of_model += f" ({self.choice.describe()})"
        if self.mig_profile is not None:
            text = f"MIG {self.mig_profile}"
        elif self.slots is not None:
            text = f"{self.slots} slot{'s' if self.slots != 1 else ''}"
        elif self.whole:
            text = "whole GPU"
        else:
            text = f"{describe_memory(self.memory)} memory"
            if self.cores:
                text += f", {self.cores}% cores"
        return (f"{self.devices} x " if self.devices > 1 else "") + text + of_model


def describe_memory(memory: int | Fraction) -> str:
    """`4Gi`, `1 byte of`, `1/3 of the`, `all`: what stands before the word memory."""
    if isinstance(memory, int):
        shown = kubernetes_quantities.describe_bytes(memory)
        return f"{shown} of" if " " in shown else shown
    return "all" if memory == 1 else f"{memory.numerator}/{memory.denominator} of the"


def memory_on(size: int, memory: int | Fraction) -> int:
    """The bytes that the slice has on a GPU of that size: parts are rounded down to the step, amounts up."""
    if isinstance(memory, int):
        return -(-memory // MEMORY_STEP) * MEMORY_STEP
    return math.floor(memory * size / MEMORY_STEP) * MEMORY_STEP


def mig_size(name: str) -> tuple[int, int]:
    """At most how many percent of a GPU's cores, and how much memory, a partition of the profile has."""
    known = _MIG_SIZES.get(name)
    if known is not None:
        return known
    # Of a GPU that we have no table of: its name says it, and some have but four compute slices.
    compute, _, rest = name.partition("g.")
    return min(100, 100 * int(compute) // _FEWEST_COMPUTE_SLICES), int(rest.partition("gb")[0]) * _GIB


def mig_size_of_resource(resource: str) -> tuple[int, int] | None:
    """The same for the extended resource that stands for a profile. None if its name does not say which."""
    found = _MIG_RESOURCE.match(resource)
    return None if found is None else mig_size(found[1] + (f"+{found[2]}" if found[2] else ""))


def _mig_sizes() -> dict[str, tuple[int, int]]:
    """Of every profile, as the GPU has it that gives most by that name."""
    found: dict[str, tuple[int, int]] = {}
    for model in gpus.PRESETS.values():
        slices = max((profile.compute_slices for profile in model.mig_profiles), default=0)
        for profile in model.mig_profiles:
            percent, memory = found.get(profile.name, (0, 0))
            here = 100 * profile.compute_slices // slices
            found[profile.name] = (max(percent, here), max(memory, profile.memory_bytes))
    return found


_MIG_SIZES: Final = _mig_sizes()


def known_mig_profiles() -> Sequence[str]:
    """Every profile's name, smallest first."""
    profiles = {profile.name: profile for model in gpus.PRESETS.values() for profile in model.mig_profiles}
    return sorted(profiles, key=lambda name: (profiles[name].compute_slices, profiles[name].memory_bytes, name))
