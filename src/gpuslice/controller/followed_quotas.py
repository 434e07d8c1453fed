"""The quotas of the cluster, their tallies, and the pods that they count, as the reconcilers share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.admission.cluster import gpu_sizes
from gpuslice.admission.cluster.gpu_sizes import Gpus, PublishedSlice
from gpuslice.admission.context import KNOWN_GPU_SIZES
from gpuslice.admission.quota_charges import charging
from gpuslice.admission.quota_charges.charging import ChargedMetadata, ChargedPod, ChargedSpec, Terms
from gpuslice.kube.resources import NODES, PODS, RESOURCE_SLICES, Metadata, ObjectMetadata
from gpuslice.kube.store import by_namespace
from gpuslice.model import devices
from gpuslice.quotas import schema, stored_quotas
from gpuslice.quotas.schema import GPU_QUOTAS, QUOTA_TALLIES, RESOURCE_QUOTAS, quota_key
from gpuslice.quotas.stored_quotas import StoredGpuQuota, StoredResourceQuota, StoredTally
from gpuslice.quotas.tally import Counted

if TYPE_CHECKING:
    from gpuslice.controller.followed_policies import FollowedPolicy
    from gpuslice.kube.informers import Informer, Informers
    from gpuslice.kube.store import Key
    from gpuslice.model.settings import Settings
    from gpuslice.quotas.schema import Count, GpuQuotaStatus, TallySpec

#: A pod that has ended holds nothing.
_ENDED: Final = ("Succeeded", "Failed")


class _Status(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class _StoredPod(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata
    spec: ChargedSpec | None = None
    status: _Status = _Status()


@dataclass(frozen=True, slots=True)
class FollowedPod:
    """What is kept of a pod that holds something a quota may count."""

    uid: str
    pod: ChargedPod
    finished: bool


@dataclass(frozen=True, slots=True)
class FollowedGpuQuota:
    count: Count
    generation: int
    status: GpuQuotaStatus


@dataclass(frozen=True, slots=True)
class FollowedTally:
    version: str
    spec: TallySpec


class FollowedQuotas:
    """`home` is gpuslice's own namespace, in which the tallies are, each by the name of its namespace."""

    def __init__(self, informers: Informers, policies: Informer[FollowedPolicy], settings: Settings, home: str) -> None:
        self.home: Final = home
        self.policies: Final = policies
        self._settings = settings
        self.gpu_quotas: Final[Informer[FollowedGpuQuota]] = informers.informer(
            GPU_QUOTAS, StoredGpuQuota, _read_gpu_quota
        )
        self.resource_quotas: Final[Informer[Count]] = informers.informer(
            RESOURCE_QUOTAS, StoredResourceQuota, lambda found: stored_quotas.of_resource_quota(found, settings)
        )
        self.tallies: Final[Informer[FollowedTally]] = informers.informer(
            QUOTA_TALLIES,
            StoredTally,
            lambda found: FollowedTally(found.metadata.resource_version, found.spec),
            namespace=home,
        )
        self.pods: Final[Informer[FollowedPod]] = informers.informer(PODS, _StoredPod, _read_pod)
        self.slices: Final[Informer[Gpus]] = informers.informer(
            RESOURCE_SLICES, PublishedSlice, gpu_sizes.published, fields=f"spec.driver={devices.DRIVER}"
        )
        self.nodes: Final[Informer[Gpus]] = informers.informer(
            NODES, ObjectMetadata, gpu_sizes.labelled, labels=gpu_sizes.MEMORY_LABEL
        )
        self._by_namespace = [
            (kind, informer.store, informer.store.index(by_namespace))
            for kind, informer in (
                (schema.KIND, self.gpu_quotas),
                (schema.RESOURCE_QUOTA_KIND, self.resource_quotas),
            )
        ]
        self._pods_by_namespace = self.pods.store.index(by_namespace)
        #: By uid: a pod's charge under the terms that it was worked out for.
        self._charges: dict[str, tuple[Terms, FollowedPod, Counted]] = {}
        self.pods.store.listen(self._forget)

    def terms(self) -> Terms:
        """By which pods are charged now."""
        sizes = gpu_sizes.sizes(self.slices.store.values(), self.nodes.store.values()) or KNOWN_GPU_SIZES
        targets = {rule.target_resource for each in self.policies.store.values() for rule in each.parsed.rules}
        slots = {self._settings.shared_resource, *(target for target in targets if target)}
        return Terms(self._settings, max(sizes), frozenset(slots))

    def has_quota(self, namespace: str) -> bool:
        return any(namespace in index for _, _, index in self._by_namespace)

    def namespaces(self) -> set[str]:
        """Those with a quota, and those with a tally."""
        return {name for _, name in self.tallies.store}.union(*(index for _, _, index in self._by_namespace))

    def quotas(self, namespace: str) -> dict[str, Count]:
        """What each quota of the namespace allows."""
        found = {}
        for kind, store, index in self._by_namespace:
            for key in index.keys(namespace):
                quota = store.get(*key)
                count = quota.count if isinstance(quota, FollowedGpuQuota) else quota
                if count is not None:
                    found[quota_key(kind, key[1])] = count
        return found

    def counted(self, namespace: str, terms: Terms) -> list[Counted]:
        """The namespace's pods, each with what it is charged."""
        return [
            self._counted(name, followed, terms)
            for _, name in self._pods_by_namespace.keys(namespace)
            if (followed := self.pods.store.get(namespace, name)) is not None
        ]

    def _counted(self, name: str, followed: FollowedPod, terms: Terms) -> Counted:
        known = self._charges.get(followed.uid)
        if known is not None and known[0] is terms and known[1] is followed:
            return known[2]
        counted = Counted(followed.uid, name, charging.charge(followed.pod, terms), followed.finished)
        self._charges[followed.uid] = terms, followed, counted
        return counted

    def _forget(self, _key: Key, old: FollowedPod | None, new: FollowedPod | None) -> None:
        if old is not None and (new is None or new.uid != old.uid):
            self._charges.pop(old.uid, None)


def _read_gpu_quota(found: StoredGpuQuota) -> FollowedGpuQuota:
    return FollowedGpuQuota(stored_quotas.of_gpu_quota(found), found.metadata.generation, found.status)


def _read_pod(found: _StoredPod) -> FollowedPod | None:
    metadata = ChargedMetadata(uid=found.metadata.uid, annotations=found.metadata.annotations)
    pruned = charging.prune(ChargedPod(metadata, found.spec))
    return None if pruned is None else FollowedPod(found.metadata.uid, pruned, found.status.phase in _ENDED)
