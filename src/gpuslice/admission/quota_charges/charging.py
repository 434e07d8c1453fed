"""What quotas charge a pod, worked out of its final spec, no matter who wrote it.

Of a pod's spec, claims and extended resources cannot be changed any more, so webhook and controller find the same. A
claim is the pod's for all of its life and counts once, however many containers name it; extended resources count as
Kubernetes counts them: what the containers have together, or the largest init container with the sidecars before it.

A part of a GPU counts as on the largest GPU of the cluster, and a slice without a limit of cores as all of a GPU's.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from gpuslice.admission.claims import claim_amounts
from gpuslice.admission.quota_charges import asked_resources
from gpuslice.dialects import fields, registry
from gpuslice.dialects.pod_values import Reader, Said
from gpuslice.model import slices
from gpuslice.model.errors import GpusliceError
from gpuslice.model.pods import Container, Metadata, Pod, PodSpec, Resources
from gpuslice.model.requests import Request, RequestError
from gpuslice.quotas import stored_quotas
from gpuslice.quotas.schema import CORES, DEVICES, MEMORY
from gpuslice.quotas.tally import Charge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpuslice.dialects.dialect import Dialect
    from gpuslice.model.pods import Place, PodClaim
    from gpuslice.model.settings import Settings


class UnsizedError(GpusliceError):
    """Raised when a pod holds something of which its spec does not say how much it is. Names the field."""


class ChargedSpec(PodSpec, frozen=True, gc=False, rename="camel"):
    """With what decides whether a ResourceQuota counts the pod."""

    priority_class_name: str | None = None
    active_deadline_seconds: int | None = None


class ChargedMetadata(Metadata, frozen=True, gc=False, rename="camel"):
    uid: str = ""


class ChargedPod(Pod, frozen=True, gc=False):
    metadata: ChargedMetadata | None = None
    spec: ChargedSpec | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What charging needs to know of the cluster."""

    settings: Settings
    #: Of the memory of a GPU: the most that any has.
    largest_gpu: int
    #: The resources that count slots.
    slot_resources: frozenset[str]


def charge(pod: ChargedPod, terms: Terms) -> Charge:
    """What the pod holds as far as its spec says how much that is; see `unsized`."""
    amounts = Counter(_extended(pod, terms))
    for template in _templates(pod):
        amounts.update(_of_claim(template, terms))
    amounts.update(_asked(pod, terms.settings))
    spec = pod.spec
    return Charge(
        amounts={name: amount for name, amount in amounts.items() if amount},
        priority_class=(spec.priority_class_name if spec else None) or "",
        terminating=spec is not None and spec.active_deadline_seconds is not None,
    )


def check_sized(pod: ChargedPod, terms: Terms, gpus_of: Callable[[PodClaim], int | None]) -> None:
    """Raises UnsizedError if the pod holds what `charge` cannot count. `gpus_of` tells for how many GPUs a claim is
    that admission did not make; one for none, as for a network card, is no matter of the quota.
    """
    for index, claim in enumerate((pod.spec.resource_claims if pod.spec else None) or ()):
        if claim.resource_claim_name is None and claim_amounts.read(claim.resource_claim_template_name or ""):
            continue
        gpus = gpus_of(claim)
        if gpus != 0:
            raise UnsizedError(f"spec.resourceClaims[{index}]: {_why_unsized(claim, gpus)}")
    reader = Reader(pod, terms.settings)
    for place in reader.places:
        try:
            for _ in _holdings(place, reader, terms):
                pass
        except (RequestError, ValueError) as error:
            raise UnsizedError(f"{place.field}: it is not known how much of a GPU this is: {error}") from None


def _why_unsized(claim: PodClaim, gpus: int | None) -> str:
    if claim.resource_claim_name is not None:
        named = f"the ResourceClaim {claim.resource_claim_name[:64]!r}"
    else:
        named = f"the template {(claim.resource_claim_template_name or '')[:64]!r}"
    if gpus is None:
        return (
            f"a quota counts the GPUs of this namespace, and gpuslice cannot know what {named} is for; make it before "
            "the pod if it is for another device, and ask for a GPU in a dialect"
        )
    if claim.resource_claim_name is not None:
        return f"{named} exists already, and no quota counts it for this pod; ask for a GPU in a dialect instead"
    return (
        f"{named} is not gpuslice's, so that it is not known how much of a GPU it gives; ask for a GPU in a dialect "
        "instead"
    )


def is_charged(pod: Pod) -> bool:
    """Whether the pod could hold anything that is charged; cheap, because most pods end here."""
    spec = pod.spec
    if spec is None:
        return False
    return bool(spec.resource_claims) or any(
        "/" in name for place in pod.places() for part in (place.limits, place.requests) for name in part
    )


def _templates(pod: Pod) -> Iterator[str]:
    for claim in (pod.spec.resource_claims if pod.spec else None) or ():
        if claim.resource_claim_template_name is not None:
            yield claim.resource_claim_template_name


def _of_claim(template: str, terms: Terms) -> dict[str, int]:
    found = claim_amounts.read(template)
    if found is None:
        return {}
    memory = terms.largest_gpu if found.memory is None else found.memory
    return _times(found.devices, memory, found.cores)


def _times(devices: int, memory: int, cores: int) -> dict[str, int]:
    """So many devices. One without a limit of cores can use all of them."""
    return {MEMORY: devices * memory, CORES: devices * (cores or 100), DEVICES: devices}


def _extended(pod: Pod, terms: Terms) -> dict[str, int]:
    """What the containers hold by extended resources."""
    reader = Reader(pod, terms.settings)
    held = []
    for place in reader.places:
        together: Counter[str] = Counter()
        try:
            for each in _holdings(place, reader, terms):
                together.update(each)
        except (RequestError, ValueError):
            continue  # such a container was refused, or is older than the quota and never starts
        held.append((place, together))
    return pod_totals(held)


def _holdings(place: Place, reader: Reader, terms: Terms) -> Iterator[dict[str, int]]:
    """Of one container. Raises RequestError or ValueError for what has no meaning."""
    names = {name for part in (place.limits, place.requests) for name in part if "/" in name}
    for dialect in _dialects(names):
        asked = dialect.read(Said(dialect, place, reader))
        names -= {*asked.resources}
        for request in asked.requests:
            yield _of_request(request, terms)
    whole = {terms.settings.whole_resource, *registry.CLASS_RESOURCES}
    for name in fields.asked(place, sorted(names)):
        if name in terms.slot_resources:
            yield _of_slots(fields.read_resource(place, name), terms)
        elif name in whole:
            yield _times(fields.read_resource(place, name), terms.largest_gpu, 100)


def _dialects(names: Iterable[str]) -> Iterator[Dialect]:
    """The dialects whose resources admission has left on the container: another program reads them."""
    found: dict[Dialect, None] = {}
    for name in sorted(names):
        if (dialect := registry.BY_RESOURCE.get(name) or registry.by_family(name)) is not None:
            found[dialect] = None
    return iter(found)


def _of_request(request: Request, terms: Terms) -> dict[str, int]:
    if request.slots is not None:
        return _of_slots(request.slots * request.devices, terms)
    if request.mig_profile is not None:
        cores, memory = slices.mig_size(request.mig_profile)
        return _times(request.devices, memory, cores)
    if request.memory_bytes is not None:
        memory = slices.memory_on(0, request.memory_bytes)
    else:
        memory = slices.memory_on(terms.largest_gpu, request.memory_fraction or Fraction(1))
    return _times(request.devices, memory, request.cores or 0)


def _of_slots(slots: int, terms: Terms) -> dict[str, int]:
    gpus = Fraction(slots, terms.settings.slots_per_gpu)
    return {
        MEMORY: slices.memory_on(terms.largest_gpu, gpus),
        CORES: math.ceil(100 * gpus),
        DEVICES: math.ceil(gpus),
    }


def _asked(pod: Pod, settings: Settings) -> dict[str, int]:
    """By the names that the pod asked in: those that it has still, and those that admission took off it."""
    recorded = asked_resources.read(pod.annotations.get(asked_resources.ANNOTATION, ""))
    held = []
    for place in pod.places():
        amounts = Counter(recorded.get(place.name, {}))
        for name in {*place.limits, *place.requests}:
            if stored_quotas.may_be_rewritten(name, settings):
                amounts[name] += asked_resources.amount_of(place, name)
        held.append((place, amounts))
    return {f"{stored_quotas.REQUESTS}{name}": amount for name, amount in pod_totals(held).items()}


def pod_totals(held: Iterable[tuple[Place, Counter[str]]]) -> dict[str, int]:
    """What the pod has when each of its containers has so much, by Kubernetes' own rule."""
    running: Counter[str] = Counter()
    beside_init: Counter[str] = Counter()
    peak: dict[str, int] = {}
    for place, amounts in held:
        if not place.init or not place.ends_before_others_start:
            running.update(amounts)
        if place.init:
            at_once = beside_init + amounts
            if not place.ends_before_others_start:
                beside_init.update(amounts)
            for name, amount in at_once.items():
                peak[name] = max(peak.get(name, 0), amount)
    return {name: max(running[name], peak.get(name, 0)) for name in {*running, *peak}}


def prune(pod: ChargedPod) -> ChargedPod | None:
    """The part of a pod that is charged, for those who keep many. None if nothing is."""
    spec, metadata = pod.spec, pod.metadata
    if spec is None or not is_charged(pod):
        return None
    kept = {name: text for name, text in pod.annotations.items() if name == asked_resources.ANNOTATION}
    return ChargedPod(
        metadata=ChargedMetadata(annotations=kept or None, uid=metadata.uid if metadata else ""),
        spec=msgspec.structs.replace(
            spec,
            containers=None if spec.containers is None else [_pruned(each) for each in spec.containers],
            init_containers=None if spec.init_containers is None else [_pruned(each) for each in spec.init_containers],
            tolerations=None,
            node_selector=None,
        ),
    )


def _pruned(container: Container) -> Container:
    resources = container.resources
    if resources is None:
        return container
    limits, requests = (
        {name: amount for name, amount in (part or {}).items() if "/" in name} or None
        for part in (resources.limits, resources.requests)
    )
    return msgspec.structs.replace(container, resources=Resources(limits, requests) if limits or requests else None)
