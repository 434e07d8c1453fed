"""The claims of a pod that admission did not make: for network cards, or for GPUs that a user asks for by himself.

What they ask for is in the cluster and not in the pod, so it is asked for when it matters: under a maximum or a
GpuQuota, and where a container asks in a dialect as well. A user who may make claims can replace one after the pod was
reviewed; that the new one asks for no GPU either, where these hold, is the API server's to see
(`registration/claim_policy.py`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from gpuslice.admission.pod_annotations import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.admission.context import Context
    from gpuslice.model.pods import PodClaim, PodSpec

#: Each is a question to the API server. Of more, none is asked, and none is known.
MOST: Final = 16


def claims_of_others(spec: PodSpec) -> tuple[PodClaim, ...]:
    """Those of the pod that exist, or are of templates that are not named as ours."""
    return tuple([claim for claim in spec.resource_claims or () if not _is_ours(claim)])


def _is_ours(claim: PodClaim) -> bool:
    return claim.resource_claim_name is None and (claim.resource_claim_template_name or "").startswith(PREFIX)


class OtherClaims:
    """Those of one pod, by their names in it, and how many GPUs each asks for."""

    def __init__(self, spec: PodSpec | None, namespace: str, context: Context) -> None:
        self._namespace = namespace
        self._context = context
        self.by_name: Final = {claim.name: claim for claim in claims_of_others(spec)} if spec is not None else {}

    @cached_property
    def _asked(self) -> Mapping[PodClaim, int | None]:
        claims = tuple(self.by_name.values())
        if len(claims) > MOST:
            return dict.fromkeys(claims)
        return self._context.claimed_gpus(self._namespace, claims)

    def gpus(self, claim: PodClaim) -> int | None:
        """None if it cannot be known."""
        return self._asked.get(claim)
