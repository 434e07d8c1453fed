"""Claim templates (resource.k8s.io/v1): content and name, both from a slice alone (`claim_amounts`).

So equal slices of a namespace share one template, and a template never changes. A part of a GPU is asked as a list of
alternatives, one per size of GPU, because a claim can only ask for amounts.

The name holds a hash of the content, of 128 bits: a pod that names a template says what is in it, and `templates_in`
finds the content again from the pod's recipes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.admission.claims import claim_amounts, claim_recipes
from gpuslice.model import devices, slices
from gpuslice.model.values import kubernetes_quantities

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuslice.model.choices import GpuChoice
    from gpuslice.model.slices import Slice

API_VERSION: Final = "resource.k8s.io/v1"
_REQUEST: Final = "gpu"
_DOMAIN: Final = f'"{devices.DRIVER}"'
#: 128 bits: a second content for a name cannot be found.
_HASH_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Template:
    """A ResourceClaimTemplate that must be in the pod's namespace."""

    name: str
    #: The claim's spec, as JSON.
    spec: bytes
    #: What the controller makes it from (`claim_recipes`).
    recipe: str
    #: The one model of GPU that its claims can be of.
    gpu_model: str | None

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


def template_for(given: Slice, sizes: tuple[int, ...] | None) -> Template:
    """The same slice has the same template, today and in every replica of the webhook."""
    return _template_for(given, sizes, isinstance(given.memory, int))


@lru_cache(maxsize=4096)
def _template_for(given: Slice, sizes: tuple[int, ...] | None, _in_bytes: bool) -> Template:  # noqa: FBT001 - a key
    """Remembered by how the memory is told as well: one byte and all of it are equal numbers."""
    claim = {"devices": _devices(given, sizes)}
    canonical = json.dumps(claim, sort_keys=True, separators=(",", ":")).encode()
    name = claim_amounts.template_name(given, sizes, hashlib.sha256(canonical).hexdigest()[:_HASH_DIGITS])
    return Template(name, msgspec.json.encode(claim), claim_recipes.write(given, sizes), given.gpu_model)


@lru_cache(maxsize=128)
def templates_in(annotation: str) -> Mapping[str, Template]:
    """The templates of a pod's recipes, by their names. The pod's author may have written the annotation."""
    found = {}
    for given, sizes in claim_recipes.read(annotation):
        try:
            template = template_for(given, sizes)
        except ValueError:  # a MIG profile that is none
            continue
        found[template.name] = template
    return MappingProxyType(found)


def write_recipes(templates: Sequence[Template], earlier: str, needed: Iterable[str]) -> str:
    """The annotation of a pod that needs these templates, and those among `needed` of which an earlier call wrote the
    recipe.
    """
    known = {template.name: template for template in templates}
    if earlier:
        known = {**templates_in(earlier), **known}
        # In the pod's order, so that another call writes the same.
        known = {name: known[name] for name in needed if name in known}
    return claim_recipes.join([template.recipe for template in known.values()])


def _devices(given: Slice, sizes: tuple[int, ...] | None) -> dict[str, Any]:
    selectors = []
    if given.gpu_model is not None:
        selectors.append(f"device.attributes[{_DOMAIN}].{devices.ATTRIBUTE_MODEL} == {_quote(given.gpu_model)}")
    if given.choice is not None:
        selectors += _chosen(given.choice, of_partition=given.mig_profile is not None)
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
    constraints = []
    if given.devices > 1 and not given.whole:
        # One request can get the same shared GPU twice; a container that asks for two shares wants two GPUs.
        distinct = f"{devices.DRIVER}/{devices.ATTRIBUTE_UUID}"
        constraints.append({"requests": [_REQUEST], "distinctAttribute": distinct})
    if given.choice is not None and given.choice.one_numa_node:
        same = f"{devices.DRIVER}/{devices.ATTRIBUTE_NUMA_NODE}"
        constraints.append({"requests": [_REQUEST], "matchAttribute": same})
    if constraints:
        asked["constraints"] = constraints
    return asked


def _chosen(choice: GpuChoice, *, of_partition: bool) -> list[str]:
    """Which GPUs are meant. Types are found in the names of the product, as GFD writes it, and of the model."""
    attributes = f"device.attributes[{_DOMAIN}]"
    product, model = f"{attributes}.{devices.ATTRIBUTE_PRODUCT}", f"{attributes}.{devices.ATTRIBUTE_MODEL}"
    names = f'("NVIDIA-" + {product}.replace(" ", "-") + " " + {model}).upperAscii()'
    uuid = f"{attributes}.{devices.ATTRIBUTE_PARENT if of_partition else devices.ATTRIBUTE_UUID}"
    selectors = []
    for negation, types, uuids in (
        ("", choice.types, choice.uuids),
        ("!", choice.excluded_types, choice.excluded_uuids),
    ):
        if types:
            selectors.append(f"{negation}{_quote_all(types)}.exists(t, {names}.contains(t))")
        if uuids:
            selectors.append(f"{negation}({uuid} in {_quote_all(uuids)})")
    return selectors


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


def _quote_all(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_quote, texts))}]"


def _quote(text: str) -> str:
    """As a CEL string. The texts are checked where they enter; this keeps a slip there from becoming code."""
    return json.dumps(text)
