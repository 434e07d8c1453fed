"""Slices as claims (resource.k8s.io/v1), from templates that are named after what they ask (`claim_amounts`).

So equal slices of a namespace share one template, and a template never changes. A part of a GPU is asked as a list of
alternatives, one per size of GPU, because a claim can only ask for amounts.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.admission import claim_amounts
from gpuslice.admission.granting import NotAllowedError
from gpuslice.admission.pod_annotations import PREFIX
from gpuslice.model import devices, kubernetes_quantities, slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuslice.admission.granting import Grant
    from gpuslice.admission.patching import PodEdit
    from gpuslice.model.pods import Place
    from gpuslice.model.slices import Slice

API_VERSION: Final = "resource.k8s.io/v1"
_REQUEST: Final = "gpu"
#: Of one pod. No node has so many devices, and a few bytes of pod must not become megabytes of patch.
_MAX_CLAIMS: Final = 512
_DOMAIN: Final = f'"{devices.DRIVER}"'


@dataclass(frozen=True, slots=True)
class Template:
    """A ResourceClaimTemplate that must be in the pod's namespace."""

    name: str
    #: The claim's spec, as JSON.
    spec: bytes

    def document(self, namespace: str) -> dict[str, Any]:
        """The object to create."""
        return {
            "apiVersion": API_VERSION,
            "kind": "ResourceClaimTemplate",
            "metadata": {
                "name": self.name,
                "namespace": namespace,
                "labels": {"app.kubernetes.io/managed-by": "gpuslice"},
            },
            "spec": {"spec": msgspec.json.decode(self.spec)},
        }


def write(grants: Sequence[Grant], edit: PodEdit) -> list[Template]:
    """Puts the claims into the pod and returns the templates that they need."""
    claims = _Claims(edit)
    # An init container that ends before the others start can use their claims, so theirs come first.
    for given in sorted(grants, key=lambda given: given.reading.place.ends_before_others_start):
        place, change = given.reading.place, edit.container(given.reading.place)
        change.removed += [name for name in given.reading.asked.resources if name not in change.removed]
        change.claims += claims.names_for(given, place)
    return list(claims.templates.values())


class _Claims:
    """The claims of one pod, and who may use which."""

    def __init__(self, edit: PodEdit) -> None:
        self._edit = edit
        self.templates: dict[str, Template] = {}
        spec = edit.pod.spec
        self._taken = {claim.name for claim in (spec.resource_claims if spec else None) or ()}
        self._next = 0
        self._shared: tuple[Grant, list[str]] | None = None
        #: By template: what app containers hold, and what only init containers do. Both are free while those run.
        self._free_at_start: dict[str, list[str]] = {}

    def names_for(self, given: Grant, place: Place) -> list[str]:
        """The claims that the container uses for this grant."""
        if given.slice.shared_in_pod:
            return self._names_shared(given)
        template, count = self._template(given)
        if not place.ends_before_others_start:
            names = self._make(template, count)
            if not place.init:  # a sidecar runs beside the init containers after it
                self._free_at_start.setdefault(template.name, []).extend(names)
            return names
        free = self._free_at_start.setdefault(template.name, [])
        free += self._make(template, count - len(free))
        return free[:count]

    def _names_shared(self, given: Grant) -> list[str]:
        if self._shared is None:
            template, count = self._template(given)
            self._shared = (given, self._make(template, count))
        first, names = self._shared
        if first.slice != given.slice:
            raise NotAllowedError(
                f"{given.reading.signs[0]}: container {given.reading.place.name!r} asks for {given.slice.describe()}, "
                f"but {first.reading.place.name!r} for {first.slice.describe()}; to share one slice, ask for the same"
            )
        return names

    def _template(self, given: Grant) -> tuple[Template, int]:
        """The template, and how many claims of it: each MIG partition is a claim of its own."""
        template = template_for(given.slice, given.sizes)
        self.templates[template.name] = template
        return template, given.slice.devices if given.slice.mig_profile is not None else 1

    def _make(self, template: Template, count: int) -> list[str]:
        if len(self._edit.claims) + count > _MAX_CLAIMS:
            raise NotAllowedError(f"spec: the pod asks for more than {_MAX_CLAIMS} slices; ask for fewer")
        names: list[str] = []
        while len(names) < count:
            name = f"{PREFIX}{self._next}"
            self._next += 1
            if name not in self._taken:
                self._edit.claims[name] = template.name
                names.append(name)
        return names


def template_for(given: Slice, sizes: tuple[int, ...] | None) -> Template:
    """The same slice has the same template, today and in every replica of the webhook."""
    return _template_for(given, sizes, isinstance(given.memory, int))


@lru_cache(maxsize=4096)
def _template_for(given: Slice, sizes: tuple[int, ...] | None, _in_bytes: bool) -> Template:  # noqa: FBT001 - a key
    """Remembered by how the memory is told as well: one byte and all of it are equal numbers."""
    claim = {"devices": _devices(given, sizes)}
    canonical = json.dumps(claim, sort_keys=True, separators=(",", ":")).encode()
    name = claim_amounts.template_name(given, sizes, hashlib.sha256(canonical).hexdigest()[:16])
    return Template(name, msgspec.json.encode(claim))


def _devices(given: Slice, sizes: tuple[int, ...] | None) -> dict[str, Any]:
    selectors = []
    if given.gpu_model is not None:
        selectors.append(f"device.attributes[{_DOMAIN}].{devices.ATTRIBUTE_MODEL} == {_quote(given.gpu_model)}")
    if given.mig_profile is not None:
        selectors.append(f"device.attributes[{_DOMAIN}].{devices.ATTRIBUTE_PROFILE} == {_quote(given.mig_profile)}")
        partition = _exact(devices.MIG_CLASS, 1, selectors, {})
        return {"requests": [{"name": _REQUEST, "exactly": partition}]}
    request: dict[str, Any]
    if sizes is None:
        amounts = _amounts(given, None)
        request = {"name": _REQUEST, "exactly": _exact(devices.GPU_CLASS, given.devices, selectors, amounts)}
    else:
        alternatives = [
            _exact(devices.GPU_CLASS, given.devices, [*selectors, _has_size(size)], _amounts(given, size))
            for size in sizes
        ]
        if len(alternatives) == 1:
            request = {"name": _REQUEST, "exactly": alternatives[0]}
        else:
            named = [
                {"name": f"of-{kubernetes_quantities.format_bytes(size).lower()}", **alternative}
                for size, alternative in zip(sizes, alternatives, strict=True)
            ]
            request = {"name": _REQUEST, "firstAvailable": named}
    asked: dict[str, Any] = {"requests": [request]}
    if given.devices > 1 and not given.whole:
        # One request can get the same shared GPU twice; a container that asks for two shares wants two GPUs.
        distinct = f"{devices.DRIVER}/{devices.ATTRIBUTE_UUID}"
        asked["constraints"] = [{"requests": [_REQUEST], "distinctAttribute": distinct}]
    return asked


def _exact(device_class: str, count: int, selectors: Iterable[str], amounts: dict[str, str]) -> dict[str, Any]:
    """Every field that the API server would fill in is there, so that what it stores is what we made."""
    request: dict[str, Any] = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    if expressions := [{"cel": {"expression": selector}} for selector in selectors]:
        request["selectors"] = expressions
    if amounts:
        request["capacity"] = {"requests": amounts}
    return request


def _amounts(given: Slice, size: int | None) -> dict[str, str]:
    """What is left out takes the device's default: all memory, no reserved cores."""
    amounts = {}
    if isinstance(given.memory, int) or (size is not None and given.memory != 1):
        memory = slices.memory_on(size or 0, given.memory)
        amounts[devices.CAPACITY_MEMORY] = kubernetes_quantities.format_bytes(max(memory, devices.MEMORY_STEP))
    if given.cores:
        amounts[devices.CAPACITY_CORES] = str(given.cores)
    return amounts


def _has_size(size: int) -> str:
    quantity = kubernetes_quantities.format_bytes(size)
    capacity = f"device.capacity[{_DOMAIN}].{devices.CAPACITY_MEMORY}"
    return f"{capacity}.compareTo(quantity({_quote(quantity)})) == 0"


def _quote(text: str) -> str:
    """As a CEL string. The texts are checked where they enter; this keeps a slip there from becoming code."""
    return json.dumps(text)
