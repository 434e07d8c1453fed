"""What an installation configures about the ways of asking for a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuslice.model import devices

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Slots by workload type, as CastSlice's users know them.
CASTSLICE_PRESETS: Final[Mapping[str, int]] = MappingProxyType({"training": 4, "inference": 2, "batch": 2, "dev": 1})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Names and presets. The defaults are those that the dialects' own users know."""

    castslice_optimize: str = "castops.io/optimize"
    castslice_ratio: str = "castops.io/slice-ratio"
    castslice_workload: str = "castops.io/workload-type"
    castslice_presets: Mapping[str, int] = field(default_factory=lambda: CASTSLICE_PRESETS)
    castslice_default_slots: int = 1
    shared_resource: str = devices.SHARED_RESOURCE
    whole_resource: str = devices.WHOLE_RESOURCE
    slots_per_gpu: int = devices.SLOTS_PER_GPU


#: What a cluster has whose operator changed nothing.
DEFAULT_SETTINGS: Final = Settings()
