"""The GPUs of the cluster and what is held of each, through the shared informers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.accounting import published_gpus as reading
from gpuslice.accounting.metering import Gpu
from gpuslice.accounting.published_gpus import StoredClaim, StoredNode, StoredPod, StoredSlice
from gpuslice.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from gpuslice.model import devices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuslice.accounting.charges import ChargeBy
    from gpuslice.accounting.metering import Holding
    from gpuslice.accounting.published_gpus import AllocatedClaim, Node, PublishedDevice, SlotParts, SlotPod
    from gpuslice.kube.informers import Informer, Informers
    from gpuslice.kube.store import Key

#: The price of models that no price is given for.
ANY_MODEL: Final = "*"


class FollowedGpus:
    """Prices are of an hour, by model, in millionths of the currency."""

    def __init__(self, informers: Informers, slots: SlotParts, by: ChargeBy, prices: Mapping[str, int]) -> None:
        self._by = by
        self._prices = prices
        self.slices: Final[Informer[tuple[PublishedDevice, ...]]] = informers.informer(
            RESOURCE_SLICES, StoredSlice, reading.published, fields=f"spec.driver={devices.DRIVER}"
        )
        self.claims: Final[Informer[AllocatedClaim]] = informers.informer(
            RESOURCE_CLAIMS, StoredClaim, reading.allocated
        )
        self.nodes: Final[Informer[Node]] = informers.informer(
            NODES, StoredNode, lambda found: reading.node(found, slots)
        )
        self.pods: Final[Informer[SlotPod]] = informers.informer(
            PODS, StoredPod, lambda found: reading.slot_pod(found, slots)
        )
        self._slices_by_gpu = self.slices.store.index(lambda _key, found: {each.gpu for each in found})
        self._slices_by_device = self.slices.store.index(lambda _key, found: [(each.pool, each.name) for each in found])
        self._slices_by_node = self.slices.store.index(lambda _key, found: {each.node for each in found})
        self._claims_by_device = self.claims.store.index(
            lambda _key, found: {(each.pool, each.device) for each in found.given}
        )
        self._claims_by_uid = self.claims.store.index(lambda _key, found: (found.uid,))
        self._pods_by_node = self.pods.store.index(lambda _key, found: (found.node,))

    def names(self) -> set[str]:
        """All accounts that the cluster has GPUs for."""
        slots = {reading.slots_account(each.name) for each in self.nodes.store.values() if each.parts}
        return slots | {device.gpu for found in self.slices.store.values() for device in found}

    def look(self, name: str) -> tuple[Gpu, list[Holding]] | None:
        """The account as it is now. None: there is no such GPU."""
        node_name, slash, _ = name.rpartition("/slots")
        return self._look_at_slots(node_name) if slash else self._look_at_gpu(name)

    def is_held(self, claim: str) -> bool:
        """Whether a claim, or a pod with slots, is still there."""
        return claim in self._claims_by_uid or any(each.uid == claim for each in self.pods.store.values())

    def heard_within(self, seconds: float) -> bool:
        """Whether what is known is no older than that."""
        of_interest: list[Informer[object]] = [self.slices, self.claims, self.pods]  # type: ignore[list-item]
        return all(each.heard_within(seconds) or not each.served for each in of_interest)

    def accounts_of_slice(
        self, _key: Key, old: Iterable[PublishedDevice] | None, new: Iterable[PublishedDevice] | None
    ) -> set[str]:
        return {each.gpu for found in (old, new) for each in found or ()}

    def accounts_of_claim(self, _key: Key, old: AllocatedClaim | None, new: AllocatedClaim | None) -> set[str]:
        given = {(each.pool, each.device) for claim in (old, new) if claim is not None for each in claim.given}
        return {
            device.gpu
            for pool, name in given
            for key in self._slices_by_device.keys((pool, name))
            for device in self.slices.store.get(*key) or ()
            if (device.pool, device.name) == (pool, name)
        }

    def accounts_of_node(self, _key: Key, old: Node | None, new: Node | None) -> set[str]:
        found = next(each for each in (new, old) if each is not None)
        accounts = {reading.slots_account(found.name)} if any(each and each.parts for each in (old, new)) else set()
        if (old and old.ready) == (new and new.ready):
            return accounts
        on_node = (self.slices.store.get(*key) or () for key in self._slices_by_node.keys(found.name))
        return accounts | {device.gpu for published in on_node for device in published}

    def accounts_of_pod(self, _key: Key, old: SlotPod | None, new: SlotPod | None) -> set[str]:
        return {reading.slots_account(each.node) for each in (old, new) if each is not None}

    def _look_at_slots(self, name: str) -> tuple[Gpu, list[Holding]] | None:
        found = self.nodes.store.get("", name)
        if found is None or not found.parts:
            return None
        gpu = Gpu(
            reading.slots_account(name), name, found.model, found.parts, self._price(found.model), usable=found.ready
        )
        pods = (self.pods.store.get(*key) for key in self._pods_by_node.keys(name))
        return gpu, [each.holding() for each in pods if each is not None]

    def _look_at_gpu(self, name: str) -> tuple[Gpu, list[Holding]] | None:
        of_gpu = [
            device
            for key in self._slices_by_gpu.keys(name)
            for device in self.slices.store.get(*key) or ()
            if device.gpu == name
        ]
        if not of_gpu:
            return None
        node = self.nodes.store.get("", of_gpu[0].node)
        gpu = reading.gpu_of(of_gpu, 0, node_ready=node is not None and node.ready)
        gpu = Gpu(gpu.name, gpu.node, gpu.model, gpu.parts, self._price(gpu.model), usable=gpu.usable)
        keys = {key for device in of_gpu for key in self._claims_by_device.keys((device.pool, device.name))}
        claims = (self.claims.store.get(*key) for key in sorted(keys))
        return gpu, [reading.holding(claim, of_gpu, self._by) for claim in claims if claim is not None]

    def _price(self, model: str) -> int:
        return self._prices.get(model, self._prices.get(ANY_MODEL, 0))
