"""CastSlice: `nvidia.com/gpu` on a pod that is annotated for optimization becomes slots of a shared GPU.

The number of slots is that of `castops.io/slice-ratio`, else the preset of `castops.io/workload-type`, else the
default. A container that asks for several GPUs gets so many of each.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuslice.dialects import forms
from gpuslice.dialects.dialect import Asked, Dialect, PodField, WholeGpus
from gpuslice.model.policies import Backend
from gpuslice.model.requests import Request, RequestError
from gpuslice.model.settings import Setting, presets, slots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.dialects.pod_values import Said
    from gpuslice.model.policies import Rule
    from gpuslice.model.settings import Settings

OPTIMIZE: Final = PodField("castops.io/optimize", forms.AnyText(), setting="castslice.annotations.optimize")
RATIO_FORM: Final = forms.PositiveNumber()
RATIO: Final = PodField("castops.io/slice-ratio", RATIO_FORM, setting="castslice.annotations.sliceRatio")
#: Its form depends on the presets, which a policy can change: the API server cannot know it.
WORKLOAD: Final = PodField("castops.io/workload-type", forms.AnyText(), setting="castslice.annotations.workloadType")
_KNOWN: Final[Mapping[str, int]] = MappingProxyType({"training": 4, "inference": 2, "batch": 2, "dev": 1})
PRESETS: Final = Setting(
    "castslice.presets",
    _KNOWN,
    presets("a workload type", "training"),
    kind=dict,
    description="Slots by workload type. A file that names any names them all.",
)
DEFAULT_SLOTS: Final = Setting("castslice.defaultSlots", 1, slots, description="Slots where the pod does not say.")


def _read(said: Said) -> Asked:
    request = Request(slots=_slots(said), devices=said.whole_gpus)
    return Asked(requests=(request,), resources=(said.reader.settings.whole_resource,))


def _slots(said: Said) -> int:
    settings = said.reader.settings
    by_workload = settings.get(PRESETS)
    workload = said.value(WORKLOAD)
    if workload is not None and workload not in by_workload:
        known = ", ".join(sorted(by_workload)) or "none"
        raise RequestError(said.path(WORKLOAD), f"{workload!r} is not a workload type", f"the known ones are {known}")
    ratio = said.value(RATIO)
    if ratio is not None:
        return ratio
    return by_workload[workload] if workload else settings.get(DEFAULT_SLOTS)


def _settings_under(settings: Settings, rule: Rule) -> Settings:
    if rule.presets is not None:
        settings = settings.having(PRESETS, rule.presets)
    if rule.default_slots is not None:
        settings = settings.having(DEFAULT_SLOTS, rule.default_slots)
    return settings


DIALECT: Final = Dialect(
    name="castslice",
    read=_read,
    fields=(OPTIMIZE, RATIO, WORKLOAD),
    whole_gpus=WholeGpus.ASK,
    switch=OPTIMIZE,
    default_backend=Backend.EXTENDED,
    settings=(DEFAULT_SLOTS, PRESETS),
    settings_under=_settings_under,
)
