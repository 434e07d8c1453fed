"""A dialect that is not there: a container asks by `toy.example/percent` or `toy.example/gigabytes`, or the pod does by
its label `toy-share`, for the container that the annotation `toy.example/for` names.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Asked, Dialect, Exclusive, Need, PodField, Resource, ResourceFamily, TargetField
from gpuslice.model.requests import Request
from gpuslice.model.settings import Setting, slots

if TYPE_CHECKING:
    from gpuslice.dialects.pod_values import Said

PERCENT: Final = Resource("toy.example/percent", forms.Percent())
GIGABYTES: Final = Resource("toy.example/gigabytes")
CORES: Final = Resource("toy.example/cores", forms.Percent())
SIZES: Final = ResourceFamily("toy.example/size-", "[1-9]gb", what="a size", examples=("1gb", "2gb"))
SHARE: Final = PodField("toy-share", forms.PartOfGpu(up_to_one=False), asks=True, kind="labels")
SPEED: Final = PodField(
    "toy.example/speed", forms.OneOf(("slow", "fast"), "a speed", 'write "slow" or "fast"'), setting="toy.labels.speed"
)
#: How many gigabytes a size is counted as.
UNIT: Final = Setting("toy.unit", 1, slots)


def _read(said: Said) -> Asked:
    percent, gigabytes = said.amount(PERCENT), said.amount(GIGABYTES)
    sizes = [int(name.removeprefix(SIZES.prefix)[0]) for name in said.amounts if name.startswith(SIZES.prefix)]
    memory = (gigabytes or sum(sizes) * said.reader.settings.get(UNIT)) * 2**30
    share = said.value(SHARE) or (Fraction(percent, 100) if percent else None)
    request = Request(memory_bytes=memory or None, memory_fraction=share, cores=said.amount(CORES) or None)
    return Asked(requests=(request,), resources=tuple(said.amounts))


DIALECT: Final = Dialect(
    name="toy",
    read=_read,
    prefixes=("toy.example/",),
    resources=(PERCENT, GIGABYTES, CORES),
    family=SIZES,
    fields=(SHARE, SPEED),
    target=TargetField("toy.example/for", forms.ContainerName()),
    exclusive=(Exclusive(first=PERCENT, second=GIGABYTES), Exclusive(first=PERCENT, second=SHARE)),
    needs=(
        Need(
            field=CORES,
            any_of=(PERCENT, GIGABYTES),
            reason="says how many cores, but not how much memory",
            remedy=f"add {PERCENT.name} or {GIGABYTES.name}",
        ),
    ),
    settings=(UNIT,),
)
