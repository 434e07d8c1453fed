"""Which GPUs a slice may be on, beyond what it has to have."""

from __future__ import annotations

from typing import Final

import msgspec

#: In each list.
MOST_ALTERNATIVES: Final = 8
#: How they are written, as regular expressions.
TYPE: Final = "[A-Z0-9][A-Z0-9._+()-]{0,47}"
UUID: Final = "GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class GpuChoice(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is empty leaves the choice open."""

    #: Parts of the names of products, in capitals and without spaces: one of them is in the GPU's, and none of those.
    types: tuple[str, ...] = ()
    excluded_types: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    excluded_uuids: tuple[str, ...] = ()
    #: Several GPUs are of one NUMA node.
    one_numa_node: bool = False

    def describe(self) -> str:
        """For people: `of type A100 or V100, not T4`."""
        parts = []
        if self.types:
            parts.append(f"of type {' or '.join(self.types)}")
        if self.excluded_types:
            parts.append(f"not of type {' or '.join(self.excluded_types)}")
        if self.uuids:
            parts.append(" or ".join(self.uuids))
        if self.excluded_uuids:
            parts.append(f"not {' or '.join(self.excluded_uuids)}")
        if self.one_numa_node:
            parts.append("on one NUMA node")
        return ", ".join(parts)
