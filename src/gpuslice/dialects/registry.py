"""All dialects, and whether a pod may speak one at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import castslice, hami, instaslice, kai, native, vcuda

if TYPE_CHECKING:
    from gpuslice.dialects.asking import Dialect
    from gpuslice.model.pods import Pod

DIALECTS: Final[tuple[Dialect, ...]] = (castslice, instaslice, vcuda, native, hami, kai)
NAMES: Final = tuple(dialect.NAME for dialect in DIALECTS)

_RESOURCES: Final = ("nvidia.com/", "tencent.com/vcuda-", "gpuslice.io/")
_ANNOTATIONS: Final = (native.FRACTION, kai.FRACTION, kai.MEMORY, kai.DEVICES)


def may_ask(pod: Pod, whole_resource: str) -> bool:
    """Whether anything in the pod could be a request. Cheap, because most pods of a cluster end here."""
    annotations = pod.annotations
    if any(name in annotations for name in _ANNOTATIONS):
        return True
    for place in pod.places():
        for names in (place.limits, place.requests):
            for name in names:
                if name.startswith(_RESOURCES) or name == whole_resource:
                    return True
    return False
