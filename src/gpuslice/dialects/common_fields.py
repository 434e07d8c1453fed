"""Annotations that hold beside every dialect: of which model the GPU is, whether the containers of the pod hold one
slice together, and HAMi's, which choose among GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from gpuslice.dialects import choices, forms
from gpuslice.dialects.dialect import PodField

if TYPE_CHECKING:
    from gpuslice.dialects.dialect import Asked
    from gpuslice.dialects.pod_values import Reader

GPU_MODEL: Final = PodField("gpuslice.io/gpu-model", forms.GpuModelName())
#: Whether each container has a slice of its own, or all hold one together.
OWN: Final = "container"
TOGETHER: Final = "pod"
SHARING: Final = PodField(
    "gpuslice.io/sharing",
    forms.OneOf(
        (OWN, TOGETHER),
        "a way of sharing",
        f'write "{OWN}" (each container has a slice of its own) or "{TOGETHER}" (they hold one together)',
    ),
)
FIELDS: Final[tuple[PodField[Any], ...]] = (GPU_MODEL, SHARING, *choices.FIELDS)
_NAMES: Final = frozenset(field.name for field in FIELDS)


def applied(asked: Asked, reader: Reader) -> Asked:
    """The same, for GPUs and containers as the pod says."""
    if _NAMES.isdisjoint(reader.annotations):
        return asked
    model = reader.parsed(GPU_MODEL)
    together = reader.parsed(SHARING) == TOGETHER
    requests = tuple(
        structs.replace(each, gpu_model=model, shared_in_pod=together, choice=choices.read(reader, each) or each.choice)
        for each in asked.requests
    )
    return structs.replace(asked, requests=requests)
