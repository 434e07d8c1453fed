"""Koordinator: `koordinator.sh/gpu` is memory and cores alike, in hundredths of a GPU: up to 100 of one, or a multiple.

Or `koordinator.sh/gpu-memory` (bytes) or `koordinator.sh/gpu-memory-ratio` (hundredths) says the memory, and
`koordinator.sh/gpu-core` the cores; `koordinator.sh/gpu.shared` spreads these evenly over so many GPUs, and without it
a memory ratio of several hundreds is as many GPUs.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import common_fields, forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, Need, PeerScheduler, PodField, Resource, Unkept
from gpuslice.model.requests import Request, whole_gpus

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

GPU: Final = Resource("koordinator.sh/gpu", forms.HundredthsOfGpus())
CORE: Final = Resource("koordinator.sh/gpu-core")
MEMORY: Final = Resource("koordinator.sh/gpu-memory")
RATIO: Final = Resource("koordinator.sh/gpu-memory-ratio")
SHARED: Final = Resource("koordinator.sh/gpu.shared")
#: What keeps a container to its share. Here it is always gpuslice.
ISOLATION: Final = PodField("koordinator.sh/gpu-isolation-provider", forms.AnyText(), kind="labels", unread=True)
_BY_ITS_SCHEDULER: Final = Unkept(
    "it tells Koordinator's scheduler which devices to choose, and Kubernetes' own places this pod",
    f"leave it out; {common_fields.GPU_MODEL.name} chooses the model",
)
_CHOICES: Final = tuple(
    PodField(f"scheduling.koordinator.sh/{name}", forms.AnyText(), unkept=_BY_ITS_SCHEDULER)
    for name in ("device-allocate-hint", "device-joint-allocate", "gpu-partition-spec")
)


def _read(said: Said) -> Asked:
    whole = said.amount(GPU)
    request = _of_both(whole) if whole else _of_each(said)
    return Asked(requests=(request,), resources=tuple(said.amounts))


def _of_both(hundredths: int) -> Request:
    if forms.is_share(hundredths):
        return Request(memory_fraction=Fraction(hundredths, 100), cores=hundredths)
    return whole_gpus(hundredths // 100)


def _of_each(said: Said) -> Request:
    ratio, memory, core = said.amount(RATIO), said.amount(MEMORY), said.amount(CORE)
    devices = said.amount(SHARED) or (ratio // 100 if ratio % 100 == 0 else 0) or 1
    return Request(
        memory_bytes=-(-memory // devices) or None,
        memory_fraction=Fraction(ratio, 100 * devices) if ratio else None,
        cores=-(-core // devices) or None,
        devices=devices,
    )


def _needs_memory(field: Resource, reason: str) -> Need:
    return Need(field=field, any_of=(MEMORY, RATIO), reason=reason, remedy=f"add {MEMORY.name} or {RATIO.name}")


DIALECT: Final = Dialect(
    name="koordinator",
    read=_read,
    prefixes=("koordinator.sh/gpu",),
    resources=(GPU, CORE, MEMORY, RATIO, SHARED),
    fields=(ISOLATION, *_CHOICES),
    schedulers=(PeerScheduler(name="koord-scheduler", knows="quotas, reservations and topologies"),),
    exclusive=(
        Exclusive(first=MEMORY, second=RATIO),
        *(Exclusive(first=GPU, second=other, what="memory and cores") for other in (CORE, MEMORY, RATIO)),
    ),
    needs=(
        _needs_memory(CORE, "asks for cores, but not for how much memory"),
        _needs_memory(SHARED, "says on how many GPUs, but not how much of them"),
    ),
)
