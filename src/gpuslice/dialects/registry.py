"""All dialects, and whether a pod may speak one at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.dialects import castslice, hami, instaslice, kai, native, vcuda
from gpuslice.model import devices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.dialects.asking import Dialect
    from gpuslice.model.pods import Pod, PodClaim
    from gpuslice.model.settings import Settings

DIALECTS: Final[tuple[Dialect, ...]] = (castslice, instaslice, vcuda, native, hami, kai)
NAMES: Final = tuple(dialect.NAME for dialect in DIALECTS)

#: Kubernetes takes the name of a device class for a resource, and makes the claim itself: for all of a GPU, as nothing
#: less is said. That is no dialect, but a policy has to know of it.
CLASS_RESOURCES: Final = tuple(f"deviceclass.resource.kubernetes.io/{name}" for name in devices.CLASS_SELECTORS)

#: The signs of a request, whatever the dialect: how resources begin, and annotations that need no resource beside them.
RESOURCE_PREFIXES: Final = ("nvidia.com/", "tencent.com/vcuda-", "gpuslice.io/", *CLASS_RESOURCES)
ASKING: Final = {native.NAME: (native.FRACTION,), kai.NAME: (kai.FRACTION, kai.MEMORY, kai.DEVICES)}
ANNOTATIONS: Final = tuple(name for names in ASKING.values() for name in names)


def annotations_read(settings: Settings) -> tuple[str, ...]:
    """Every annotation that some dialect looks at."""
    configured = (settings.castslice_optimize, settings.castslice_ratio, settings.castslice_workload)
    return (*configured, *vcuda.ANNOTATIONS, *native.ANNOTATIONS, *hami.ANNOTATIONS, *kai.ANNOTATIONS)


def may_ask(pod: Pod, settings: Settings) -> bool:
    """Whether anything in the pod could be a request. Cheap, because most pods of a cluster end here."""
    annotations = pod.annotations
    if any(name in annotations for name in ANNOTATIONS):
        return True
    spec = pod.spec
    if spec is None:
        return False
    if spec.resource_claims and _names_template(spec.resource_claims):
        return True
    configured = (settings.whole_resource, settings.shared_resource)
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            resources = container.resources
            if resources is None:
                continue
            for names in (resources.limits, resources.requests):
                for name in names or ():
                    if name.startswith(RESOURCE_PREFIXES) or name in configured:
                        return True
    return False


def _names_template(claims: Iterable[PodClaim]) -> bool:
    """No dialect, but a way to hold a slice: a claim of a template that the namespace has because of other pods."""
    return any((claim.resource_claim_template_name or "").startswith(devices.CLAIM_PREFIX) for claim in claims)
