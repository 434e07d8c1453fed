"""All dialects, and whether a pod may speak one at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import castslice, hami, instaslice, kai, native, vcuda

if TYPE_CHECKING:
    from gpuslice.dialects.asking import Dialect
    from gpuslice.model.pods import Pod

DIALECTS: Final[tuple[Dialect, ...]] = (castslice, instaslice, vcuda, native, hami, kai)
NAMES: Final = tuple(dialect.NAME for dialect in DIALECTS)

#: The signs of a request, whatever the dialect: how resources begin, and annotations that need no resource beside them.
RESOURCE_PREFIXES: Final = ("nvidia.com/", "tencent.com/vcuda-", "gpuslice.io/")
ANNOTATIONS: Final = (native.FRACTION, kai.FRACTION, kai.MEMORY, kai.DEVICES)


def may_ask(pod: Pod, whole_resource: str) -> bool:
    """Whether anything in the pod could be a request. Cheap, because most pods of a cluster end here."""
    annotations = pod.annotations
    if any(name in annotations for name in ANNOTATIONS):
        return True
    spec = pod.spec
    if spec is None:
        return False
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            resources = container.resources
            if resources is None:
                continue
            for names in (resources.limits, resources.requests):
                for name in names or ():
                    if name.startswith(RESOURCE_PREFIXES) or name == whole_resource:
                        return True
    return False
