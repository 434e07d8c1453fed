"""How much a claim template gives, told by its name: `gpuslice-1x3800mi-30c-` and a hash.

A container can name claims that it did not ask for: those of other containers, or claims of a template that the
namespace has because of other pods. What it comes to hold must be known without asking the API server, in every replica
of the webhook and for a pod that comes back after another webhook changed it. So the amounts are in the name.

A pod can name a template that does not exist, with any amounts in its name. The controller makes it only if the name is
that of the slice in the pod's recipe (`claim_recipes`), amounts and all; else the pod waits for ever. A name that says
less than its template gives needs the right to create templates, which is beyond what a policy governs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuslice.model import slices
from gpuslice.model.devices import CLAIM_PREFIX, MEMORY_STEP

if TYPE_CHECKING:
    from gpuslice.model.slices import Slice

#: Sixteen digits: of a webhook that made the templates itself. Pods and manifests may still have these names.
_NAME: Final = re.compile(
    rf"{CLAIM_PREFIX}([0-9]{{1,4}})x(?:([0-9]{{1,9}})mi|all)-([0-9]{{1,3}})c-(?:[0-9a-f]{{16}}){{1,2}}", re.ASCII
)


class Amounts(NamedTuple):
    """What a claim gives at most."""

    devices: int
    #: Bytes on each GPU; None is all of the GPU's.
    memory: int | None
    #: Percent of each GPU; 0 is no limit.
    cores: int


def template_name(given: Slice, sizes: tuple[int, ...] | None, digest: str) -> str:
    """The name of the template for one claim of the slice; `digest` tells templates of equal amounts apart."""
    devices, memory, cores = _amounts(given, sizes)
    shown = "all" if memory is None else f"{-(-memory // MEMORY_STEP)}mi"
    return f"{CLAIM_PREFIX}{devices}x{shown}-{cores}c-{digest}"


@lru_cache(maxsize=4096)
def read(template: str) -> Amounts | None:
    """The amounts in a template's name; None if it is not how admission names templates."""
    found = _NAME.fullmatch(template)
    if found is None:
        return None
    devices, memory, cores = found.groups()
    return Amounts(int(devices), None if memory is None else int(memory) * MEMORY_STEP, int(cores))


def _amounts(given: Slice, sizes: tuple[int, ...] | None) -> Amounts:
    if given.mig_profile is not None:  # each partition is a claim of its own
        cores, memory = slices.mig_size(given.mig_profile)
        return Amounts(1, memory, cores)
    if isinstance(given.memory, int):
        return Amounts(given.devices, slices.memory_on(0, given.memory), given.cores)
    if sizes is None:
        return Amounts(given.devices, None, given.cores)
    return Amounts(given.devices, max(slices.memory_on(size, given.memory) for size in sizes), given.cores)
