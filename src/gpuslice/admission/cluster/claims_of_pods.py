"""How many GPUs the claims of a pod ask for that admission did not make.

The API server is asked when a review needs to know, which is for pods with such claims alone: to follow all claims of a
cluster would cost memory and time for every pod that runs. What it answers holds for the reviews of the next moment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.admission.context import UnknownClaimsError
from gpuslice.kube.errors import ApiError
from gpuslice.kube.resources import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpuslice.kube.client.api import Api
    from gpuslice.model.pods import PodClaim

#: How long an answer holds. A review that had to ask is examined again at once, and what is not there now may be made
#: in the next moment.
_SECONDS: Final = 2.0
_SECONDS_WITHOUT: Final = 0.25
_MOST_KNOWN: Final = 1024
#: Of a request for all devices, or for access to those of others.
_ALL: Final = 1_000_000


class _Devices(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """What one request, or one of its alternatives, asks for."""

    device_class_name: str = ""
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None


class _Request(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    exactly: _Devices | None = None
    first_available: list[_Devices] | None = None


class _Claimed(msgspec.Struct, frozen=True, gc=False):
    requests: list[_Request] | None = None


class ClaimSpec(msgspec.Struct, frozen=True, gc=False):
    """The spec of a claim, as far as it tells how many GPUs it is for."""

    devices: _Claimed = _Claimed()


class _Claim(msgspec.Struct, frozen=True, gc=False):
    spec: ClaimSpec = ClaimSpec()


class _Template(msgspec.Struct, frozen=True, gc=False):
    spec: _Claim = _Claim()


class ClaimsOfPods:
    """Asks the API server, and remembers for a moment."""

    def __init__(self, api: Api, gpu_classes: Collection[str]) -> None:
        self._api = api
        self._classes = gpu_classes
        #: With the time until which it holds; None is not known.
        self._known: dict[tuple[str, PodClaim], tuple[float, int | None]] = {}

    def gpus(self, namespace: str, claims: tuple[PodClaim, ...]) -> Mapping[PodClaim, int | None]:
        """At most so many each. Raises UnknownClaimsError for those that have to be learned first."""
        now = time.monotonic()
        found = {claim: self._known.get((namespace, claim), (0.0, None)) for claim in claims}
        missing = tuple(claim for claim, (until, _) in found.items() if until < now)
        if missing:
            raise UnknownClaimsError(namespace, missing)
        return {claim: gpus for claim, (_, gpus) in found.items()}

    async def learn(self, unknown: UnknownClaimsError) -> None:
        """Raises an ApiError or an UnreachableError if the API server does not answer."""
        for claim in unknown.claims:
            gpus = await self._ask(unknown.namespace, claim)
            self._known.pop((unknown.namespace, claim), None)
            holds = _SECONDS_WITHOUT if gpus is None else _SECONDS
            self._known[unknown.namespace, claim] = time.monotonic() + holds, gpus
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    async def _ask(self, namespace: str, claim: PodClaim) -> int | None:
        try:
            if claim.resource_claim_name is not None:
                made = await self._api.get(RESOURCE_CLAIMS, claim.resource_claim_name, _Claim, namespace=namespace)
                return gpus_in(made.spec, self._classes)
            template = claim.resource_claim_template_name or ""
            stored = await self._api.get(RESOURCE_CLAIM_TEMPLATES, template, _Template, namespace=namespace)
            return gpus_in(stored.spec.spec, self._classes)
        except ApiError as error:
            if error.not_found:
                return None
            raise


def gpus_in(spec: ClaimSpec, classes: Collection[str]) -> int:
    """How many devices of these classes a claim gets at most."""
    total = 0
    for request in spec.devices.requests or ():
        alternatives = [request.exactly] if request.exactly is not None else request.first_available or []
        counts = [
            _ALL if each.allocation_mode == "All" or each.admin_access else max(each.count, 1)
            for each in alternatives
            if each.device_class_name in classes
        ]
        total += max(counts, default=0)
    return total
