"""Which claim templates the pods of the cluster refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.admission.pod_annotations import PREFIX
from gpuslice.kube.decoding import decoder
from gpuslice.kube.listing import pages
from gpuslice.kube.resources import PODS, Metadata

if TYPE_CHECKING:
    from gpuslice.kube.api import Api
    from gpuslice.kube.informers import Informer, Informers
    from gpuslice.kube.store import Key

#: A pod that has ended makes no more claims.
_ENDED: Final = ("Succeeded", "Failed")


class _Claim(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_claim_template_name: str | None = None


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_claims: list[_Claim] | None = None


class _Status(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class PodClaims(msgspec.Struct, frozen=True, gc=False):
    """A pod, as far as its claims go."""

    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_decode: Final = decoder(PodClaims)


def templates_of(pod: PodClaims) -> frozenset[str] | None:
    """The templates of ours that it needs; None if it needs none."""
    if pod.status.phase in _ENDED:
        return None
    names = (claim.resource_claim_template_name or "" for claim in pod.spec.resource_claims or ())
    return frozenset(name for name in names if name.startswith(PREFIX)) or None


async def list_referenced(api: Api, namespace: str) -> set[str]:
    """The templates that the pods of a namespace need right now, by the API server's own word."""
    found: set[str] = set()
    async for page in pages(api, PODS.path(namespace)):
        if page.first:
            found.clear()
        for item in page.items:
            found |= templates_of(_decode(item)) or frozenset()
    return found


class References:
    """Which templates the pods refer to, as pods come and go."""

    def __init__(self, informers: Informers) -> None:
        self.pods: Final[Informer[frozenset[str]]] = informers.informer(PODS, PodClaims, templates_of)
        self._by_template = self.pods.store.index(lambda key, names: [(key[0], name) for name in names])
        self.pods.store.listen(self._pod_changed)
        #: Templates that some pod has referred to since the informer began. The user of this object removes what is
        #: gone.
        self.seen: set[Key] = set()

    def has(self, template: Key) -> bool:
        return template in self._by_template

    def _pod_changed(self, key: Key, _old: frozenset[str] | None, new: frozenset[str] | None) -> None:
        self.seen |= {(key[0], name) for name in new or ()}
