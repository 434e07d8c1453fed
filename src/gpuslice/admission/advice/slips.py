"""Slips of the pen that would otherwise go unnoticed: names of ours that do not exist, resources written as
annotations, a switch that is almost on.

What is refused would wait for ever (no node offers a resource that does not exist) or run without its slice. What does
no such harm is a warning: a pod whose `castops.io/optimize` is "True" runs, with whole GPUs, as under CastSlice.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from gpuslice.admission.advice import misspelt_names
from gpuslice.admission.granting import NotAllowedError
from gpuslice.dialects import choices, common_fields, fields, registry
from gpuslice.dialects.known import hami, native

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.admission.context import Context
    from gpuslice.dialects.pod_values import Reader
    from gpuslice.model.pods import Place

_DOMAIN: Final = native.DIALECT.prefixes
_RESOURCES: Final = frozenset(resource.name for resource in native.DIALECT.resources)
_ANNOTATIONS: Final = frozenset(field.name for field in native.DIALECT.pod_fields)
#: What chooses the GPU of a slice, or its node, and how a pod with whole GPUs has it count.
_CHOICES: Final = (
    *((field, "add nvidia.com/gpumem-percentage: 100 to the container's limits") for field in choices.FIELDS),
    (common_fields.GPU_MODEL, "ask by gpuslice.io/gpus instead"),
    (hami.NODE_POLICY, "write affinity or topologySpreadConstraints instead"),
    (hami.GPU_POLICY, "leave it out, because whole GPUs are shared with no other pod"),
    (hami.MODE, "leave it out, because whole GPUs are shared with no other pod"),
)
_CHOOSING: Final = frozenset(field.name for field, _ in _CHOICES)
#: As people write yes.
_ALMOST_TRUE: Final = frozenset(("true", "yes", "on", "1", "y", "t", "enabled"))


def refuse(reader: Reader, context: Context) -> None:
    """Raises NotAllowedError for what its author cannot have meant."""
    if not registry.RESOURCES_AS_ANNOTATIONS.isdisjoint(reader.annotations):
        name = min(registry.RESOURCES_AS_ANNOTATIONS.intersection(reader.annotations))
        raise NotAllowedError(
            f"metadata.annotations[{name}]: is a resource, and asks for nothing as an annotation; write it into "
            "resources.limits of the container"
        )
    _refuse_resources_of_the_pod(reader)
    for place in reader.places:
        for name in _unknown(place):
            if name not in (context.settings.shared_resource, *context.policies.target_resources):
                raise NotAllowedError(f"{fields.resource_field(place, name)}: {_meant(name)}")


def _refuse_resources_of_the_pod(reader: Reader) -> None:
    """Kubernetes refuses these, too, or forgets them where it does not know resources of pods yet."""
    resources = reader.pod.spec.resources if reader.pod.spec is not None else None
    for part in ("limits", "requests") if resources is not None else ():
        for name in getattr(resources, part) or ():
            if registry.is_sign(name, reader.settings):
                raise NotAllowedError(
                    f"spec.resources.{part}[{name}]: a pod as a whole has cpu and memory, and no GPU; write it into "
                    "resources.limits of the container that needs it"
                )


def warnings(reader: Reader) -> Iterator[str]:
    """What a user should know of a pod that is left as it is."""
    for dialect in registry.BY_WHOLE_GPUS:
        said = None if dialect.switch is None else reader.text(dialect.switch)
        if dialect.switch is None or said is None or said == "true" or said.strip().lower() not in _ALMOST_TRUE:
            continue
        if not reader.opted_in and any(
            fields.asked(place, (reader.settings.whole_resource,)) for place in reader.places
        ):
            yield (
                f"{dialect.switch.path_in(reader.settings)}: {said[:40]!r} switches nothing on, and the pod gets whole "
                'GPUs; you meant "true"'
            )
    yield from misspelt_names.warnings(reader)


def warnings_of_choices(reader: Reader) -> Iterator[str]:
    """Which GPU a pod with whole GPUs would have, and does not get: it is left as it is, and gets any."""
    if _CHOOSING.isdisjoint(reader.annotations):
        return
    whole = reader.settings.whole_resource
    if not any(fields.asked(place, (whole,)) for place in reader.places):
        return
    for field, remedy in _CHOICES:
        if reader.text(field) not in (None, "false"):
            yield f"{field.path_in(reader.settings)}: gpuslice does not read it beside {whole} alone; {remedy}"


def _unknown(place: Place) -> list[str]:
    """The container's resources of our domain that do not exist. Zero asks for nothing."""
    names = [
        name
        for part in (place.limits, place.requests)
        for name in part
        if name.startswith(_DOMAIN) and name not in _RESOURCES
    ]
    return list(fields.asked(place, names)) if names else []


def _meant(name: str) -> str:
    if name in _ANNOTATIONS:
        return "is an annotation of the pod, not a resource; write it into metadata.annotations"
    ends = {resource.partition("/")[2]: resource for resource in sorted(_RESOURCES)}
    close = difflib.get_close_matches(name.partition("/")[2][:64], ends, n=1)
    known = f"you meant {ends[close[0]]}" if close else f"there are {', '.join(ends.values())}"
    return f"there is no such resource, and the pod would wait for ever; {known}"
