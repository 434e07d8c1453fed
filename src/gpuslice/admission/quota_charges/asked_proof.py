"""Whether what a pod's annotation says that it asked for is what got it its slices.

The annotation is put to the test: what it names is put back into the containers, what admission gives is taken out, and
the pod is decided about again. Where the same slices come out, the pod has them for what the annotation names, no
matter who wrote it: its author could as well have asked so. Other slices, or slices that the annotation does not speak
of, would be counted under no name, and are refused where a ResourceQuota counts names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gpuslice.admission import patching, pod_annotations
from gpuslice.admission.quota_charges import asked_resources
from gpuslice.admission.review import decide_document, read_pod
from gpuslice.model.errors import GpusliceError
from gpuslice.quotas.stored_quotas import may_be_rewritten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.admission.context import Context
    from gpuslice.admission.quota_charges.asked_resources import Asked
    from gpuslice.model.pods import Pod
    from gpuslice.policies.subject import User

Object = dict[str, Any]


class UnprovenError(GpusliceError):
    """Raised when a pod has slices that what it is said to have asked for does not explain."""


def check_proven(document: msgspec.Raw, namespace: str, context: Context, user: User | None) -> None:
    """Raises UnprovenError if a ResourceQuota could not tell by which names the pod asked for what it has."""
    pod = read_pod(document)
    asked = asked_resources.read(pod.annotations.get(asked_resources.ANNOTATION, ""))
    claims = _claims(pod)
    for place in pod.places():
        for claim in place.claims:
            if claim.name in claims and place.name not in asked:
                raise UnprovenError(
                    f"{place.field}.resources.claims: a ResourceQuota of the namespace counts GPUs by the names in "
                    f"which they are asked for, and the claim {claim.name[:64]!r} has none; ask in a dialect"
                )
    if asked and _holdings(pod, context) != _holdings(
        _decided_again(document, asked, namespace, context, user), context
    ):
        raise UnprovenError(
            f"metadata.annotations[{asked_resources.ANNOTATION}]: the pod has not what it would get for this; leave "
            "the annotation out and ask in a dialect. If gpuslice wrote it, a policy changed meanwhile: try again"
        )


def _claims(pod: Pod) -> dict[str, str]:
    """The claims of templates as admission names them, by their names in the pod."""
    found = (pod.spec.resource_claims if pod.spec else None) or ()
    return {
        claim.name: claim.resource_claim_template_name
        for claim in found
        if claim.resource_claim_template_name is not None
        and claim.resource_claim_template_name.startswith(pod_annotations.PREFIX)
    }


def _holdings(pod: Pod | None, context: Context) -> object:
    """What each container holds, and what the pod does: comparable."""
    if pod is None:
        return None
    claims = _claims(pod)
    containers = {
        place.name: (
            sorted(claims[claim.name] for claim in place.claims if claim.name in claims),
            {
                name: asked_resources.amount_of(place, name)
                for name in {*place.limits, *place.requests}
                if _is_given(name, context)
            },
        )
        for place in pod.places()
    }
    return containers, sorted(claims.values())


def _is_given(name: str, context: Context) -> bool:
    return may_be_rewritten(name, context.settings) or name in context.policies.target_resources


def _decided_again(
    document: msgspec.Raw, asked: Asked, namespace: str, context: Context, user: User | None
) -> Pod | None:
    """The pod that admission makes of one that asks so; None if it makes none."""
    original = _put_back(msgspec.json.decode(document), asked, context)
    decision, _ = decide_document(msgspec.json.encode(original), namespace, context, user)
    if decision.denial is not None or not decision.operations:
        return None
    return read_pod(msgspec.json.encode(patching.apply(original, list(decision.operations))))


def _put_back(pod: Object, asked: Asked, context: Context) -> Object:
    """The pod as it was when it asked. The API server has made sure that everything is of its type."""
    metadata, spec = pod["metadata"], pod["spec"]
    annotations = metadata.get("annotations") or {}
    metadata["annotations"] = {name: text for name, text in annotations.items() if name not in pod_annotations.NAMES}
    ours = _claims(read_pod(msgspec.json.encode(pod)))
    spec["resourceClaims"] = [claim for claim in spec.get("resourceClaims") or () if claim["name"] not in ours]
    for container in _containers(spec):
        if container["name"] in asked:
            _ask(container, asked[container["name"]], ours, context)
    return pod


def _containers(spec: Object) -> Iterator[Object]:
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def _ask(container: Object, asked: dict[str, int], ours: dict[str, str], context: Context) -> None:
    resources = container.setdefault("resources", {})
    for part in ("limits", "requests"):
        amounts = resources.get(part) or {}
        resources[part] = {name: amount for name, amount in amounts.items() if not _is_given(name, context)}
    resources["limits"] |= {name: str(amount) for name, amount in asked.items()}
    resources["claims"] = [claim for claim in resources.get("claims") or () if claim["name"] not in ours]
