"""Which resources admission took off a pod's containers, written on the pod: ResourceQuotas count what was asked.

    gpuslice.io/asked: "main: nvidia.com/gpu=1 nvidia.com/gpumem=4000; helper: nvidia.com/gpumem=1000"

An annotation is its author's to write, so that it is no evidence by itself. In a namespace with a quota it is believed
if admission, asked by the names that it tells, gives the pod what the pod has (`asked_proof`), and from then on the
webhook lets no user change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.model.values import kubernetes_quantities, written_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.admission.patching import PodEdit
    from gpuslice.model.pods import Place, Pod

ANNOTATION: Final = written_names.ASKED

#: Amounts of resources, by container and name.
Asked = dict[str, dict[str, int]]


def read(text: str) -> Asked:
    """What the annotation says; of a text that is none of ours, nothing."""
    found: Asked = {}
    for entry in text.split("; ") if text else ():
        container, separator, said = entry.partition(":")
        if not separator:
            return {}
        amounts = found.setdefault(container, {})
        for each in said.split():
            name, _, amount = each.partition("=")
            try:
                amounts[name] = amounts.get(name, 0) + kubernetes_quantities.parse_whole(amount)
            except ValueError:
                return {}
    return found


def merge(pod: Pod, edit: PodEdit) -> str:
    """What to write on a pod: what the edit takes off its containers, and what an earlier call did. Empty if neither
    took anything off.
    """
    asked = read(pod.annotations.get(ANNOTATION, ""))
    for change in edit.containers.values():
        gone = [name for name in change.removed if name not in change.added and change.place.asks_by_name(name)]
        if gone or change.claims:
            asked[change.place.name] = {name: amount_of(change.place, name) for name in gone}
    return _write({place.name: asked[place.name] for place in pod.places() if place.name in asked})


def amount_of(place: Place, name: str) -> int:
    """How much of a resource the container has, as Kubernetes counts it."""
    try:
        return kubernetes_quantities.parse_whole(place.requests.get(name, place.limits.get(name, 0)))
    except ValueError:
        return 0  # the API server lets no container have that


def _write(asked: Mapping[str, Mapping[str, int]]) -> str:
    return "; ".join(
        " ".join([f"{container}:", *(f"{name}={amount}" for name, amount in sorted(amounts.items()))])
        for container, amounts in asked.items()
    )
