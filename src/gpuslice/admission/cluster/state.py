"""What admission knows of the cluster, kept by informers: policies, namespaces, sizes of GPUs.

A review reads a context that is already there. A change makes a new one a moment later, from parts of which only the
changed one is read again; a stream of changes makes few contexts, and never takes more than a tenth of the time.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog

from gpuslice.admission.cluster import cluster_gpus, gpu_sizes, offers
from gpuslice.admission.cluster.claims_of_pods import ClaimsOfPods
from gpuslice.admission.cluster.cluster_gpus import ClusterGpus
from gpuslice.admission.cluster.gpu_sizes import Gpus, PublishedSlice
from gpuslice.admission.cluster.quota_reservations import QuotaReservations
from gpuslice.admission.context import Context, UnknownClaimsError, UnknownNamespaceError
from gpuslice.kube import server_version
from gpuslice.kube.client import api as calls
from gpuslice.kube.errors import ApiError
from gpuslice.kube.resources import NAMESPACES, NODES, RESOURCE_SLICES, ObjectMetadata
from gpuslice.model import devices
from gpuslice.model.settings import DEFAULT_SETTINGS
from gpuslice.policies import stored_policies
from gpuslice.policies.crd_watch import PolicyDefinition
from gpuslice.policies.rule_set import PolicySet
from gpuslice.policies.stored_policies import SLICE_POLICIES, ParsedPolicy, StoredPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpuslice.admission.cluster.quota_reservations import Wanted
    from gpuslice.admission.context import UnknownError
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informer, Informers
    from gpuslice.kube.server_version import ServerVersion
    from gpuslice.kube.store import Key
    from gpuslice.model.policies import Rule
    from gpuslice.model.settings import Settings

_SOON_SECONDS: Final = 0.05
#: Of the time between two contexts, this part may go into making one.
_SHARE: Final = 0.1
_MOST_LEARNED: Final = 1024
_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


class ClusterState:
    """The cluster, for admission. `run` keeps its context up to date, with what the informers tell."""

    def __init__(self, api: Api, informers: Informers, settings: Settings | None = None, *, home: str = "") -> None:
        """`home`: gpuslice's own namespace, where the tallies of quotas are."""
        self.reservations: Final = QuotaReservations(api, home or api.namespace)
        self.policies: Final[Informer[ParsedPolicy]] = informers.informer(
            SLICE_POLICIES, StoredPolicy, self._parse_policy
        )
        self.definition: Final = PolicyDefinition(informers, self.policies, self._policies_unknown)
        self.namespaces: Final[Informer[Mapping[str, str]]] = informers.informer(
            NAMESPACES, ObjectMetadata, lambda found: found.metadata.labels or {}
        )
        self.slices: Final[Informer[Gpus]] = informers.informer(
            RESOURCE_SLICES, PublishedSlice, gpu_sizes.published, fields=f"spec.driver={devices.DRIVER}"
        )
        self.nodes: Final[Informer[Gpus]] = informers.informer(
            NODES, ObjectMetadata, gpu_sizes.labelled, labels=gpu_sizes.MEMORY_LABEL
        )
        self.offering: Final = offers.follow(informers)
        self._api = api
        self.claims: Final = ClaimsOfPods(api, (settings or DEFAULT_SETTINGS).gpu_classes)
        made_of = Context(namespace_labels=self._namespace_labels, claimed_gpus=self.claims.gpus)
        self._context = replace(made_of, settings=settings) if settings is not None else made_of
        self._version: ServerVersion | None = None
        self._labels_matter = False
        self._ready = False
        #: Set while the context is older than what the informers have told.
        self._outdated = asyncio.Event()
        self._cost = 0.0
        self._policies_changed = False
        self._learned: dict[str, Mapping[str, str]] = {}
        self._log = structlog.get_logger()
        self.slices.on_served_changed(self._outdated.set)
        self.policies.store.listen(self._policy_changed)
        self.namespaces.store.listen(self._namespace_changed)
        for informer in (self.slices, self.nodes):
            informer.store.listen(self._gpus_changed)
        for offering in self.offering:
            offering.store.listen(self._gpus_changed)
        self._needed: Final[tuple[Informer[Any], ...]] = (
            self.policies,
            self.namespaces,
            self.slices,
            self.nodes,
            *self.offering,
        )

    @property
    def refused(self) -> dict[str, str]:
        """Stored policies that make no sense, and why."""
        return {name: parsed.complaint for (_, name), parsed in self.policies.store.items() if parsed.complaint}

    def context(self) -> Context:
        """As of now."""
        return self._context

    def synced(self) -> bool:
        """Whether the cluster was seen as a whole. Once it was, it stays so, unless policies are defined anew or no
        context can be made of what is known.
        """
        if not self._ready:
            self._ready = not self._outdated.is_set() and all(each.synced.is_set() for each in self._needed)
        return self._ready

    async def reserve(self, namespace: str, wanted: Wanted) -> None:
        await self.reservations.reserve(namespace, wanted)

    async def learn(self, unknown: UnknownError) -> None:
        """Asks for what a review must know. Raises an ApiError or an UnreachableError if it cannot be had."""
        if isinstance(unknown, UnknownClaimsError):
            await self.claims.learn(unknown)
        else:
            await self._learn_namespace(unknown.namespace)

    async def _learn_namespace(self, namespace: str) -> None:
        """The labels of a namespace that is younger than what the informer has told: a policy may be meant for it."""
        labels = _NO_LABELS
        try:
            found = await self._api.get(NAMESPACES, namespace, ObjectMetadata, accept=calls.METADATA)
            labels = found.metadata.labels or _NO_LABELS
        except ApiError as error:
            if not error.not_found:
                raise
            # The API server will refuse the pod itself.
        self._learned[namespace] = labels
        while len(self._learned) > _MOST_LEARNED:
            del self._learned[next(iter(self._learned))]

    async def run(self) -> None:
        """Until it is cancelled. If it fails and is started again, it makes the context that could not be made."""
        self._version = await server_version.ask(self._api)
        server_version.check(self._version)
        self._outdated.set()
        while True:
            await self._outdated.wait()
            await asyncio.sleep(max(_SOON_SECONDS, self._cost / _SHARE))
            try:
                self._renew()
            except Exception:
                # Deciding by policies that are not in force any more would be worse than not deciding.
                self._ready = False
                raise
            self._outdated.clear()

    def _namespace_labels(self, namespace: str) -> Mapping[str, str]:
        labels = self.namespaces.store.get("", namespace)
        if labels is None:
            labels = self._learned.get(namespace)
        if labels is None:
            if self._labels_matter:
                raise UnknownNamespaceError(namespace)
            return _NO_LABELS
        return labels

    def _parse_policy(self, stored: StoredPolicy) -> ParsedPolicy:
        return stored_policies.parse(stored, self.policies.store.get("", stored.metadata.name))

    def _policy_changed(self, key: Key, _old: ParsedPolicy | None, new: ParsedPolicy | None) -> None:
        if new is not None and new.complaint:
            self._log.warning("a policy is left out", policy=key[1], reason=new.complaint)
        self._policies_changed = True
        self._outdated.set()

    def _policies_unknown(self) -> None:
        self._ready = False

    def _namespace_changed(self, key: Key, _old: object, _new: object) -> None:
        self._learned.pop(key[1], None)

    def _gpus_changed(self, _key: Key, _old: object, _new: object) -> None:
        self._outdated.set()

    def _renew(self) -> None:
        started = time.perf_counter()
        policies = self._context.policies
        if self._policies_changed:
            policies = PolicySet(rule for parsed in self.policies.store.values() for rule in parsed.rules)
            self._labels_matter = any(map(_looks_at_namespace, policies.rules))
        found = cluster_gpus.find(
            self._context.settings,
            list(self.slices.store.values()),
            self.nodes.store.values(),
            [node for informer in self.offering for node in informer.store.values()],
            self._version,
            slices_served=self.slices.served,
        )
        # One more GPU of a known size changes nothing; a new context would only forget what was answered.
        old = self._context
        known = ClusterGpus(old.serves_dra, old.gpu_sizes, old.offered, old.node_backends)
        if (policies, found) != (old.policies, known):
            self._tell(found, known)
            self._context = replace(old, policies=policies, **found._asdict())
        self._policies_changed = False
        self._cost = time.perf_counter() - started

    def _tell(self, found: ClusterGpus, before: ClusterGpus) -> None:
        if found.node_backends != before.node_backends:
            self._log.info(
                "pods are given GPUs as the nodes offer them",
                backends=", ".join(sorted(found.node_backends)),
                claims="served" if found.serves_dra else "not served: resource.k8s.io/v1 for parts of a device",
            )


def _looks_at_namespace(rule: Rule) -> bool:
    return bool(rule.match.namespace_labels.requirements or rule.match.expression)
