"""Counts what the pods of each namespace with a quota hold, into the namespace's tally.

The webhook reserves what a new pod will hold; here it is counted once the pod is seen, and its reservation goes in the
same write. A reservation whose pod never comes (another webhook refused it, or a process was killed) goes when no
request to create it can be under way any more, and the API server says that there is no such pod. Every write is on
the condition that the tally is still the one that was looked at.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

import structlog
from prometheus_client.core import GaugeMetricFamily

from gpuslice.kube.client import api as calls
from gpuslice.kube.errors import ApiError
from gpuslice.kube.reconciler import Reconciler, Trigger
from gpuslice.kube.resources import PODS, ObjectMetadata
from gpuslice.quotas import schema
from gpuslice.quotas.schema import QUOTA_TALLIES, TallySpec
from gpuslice.quotas.tally import recount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric

    from gpuslice.admission.quota_charges.charging import Terms
    from gpuslice.controller.followed_quotas import FollowedQuotas, FollowedTally
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.informers import Informer

#: The API server gives up a request to create after 34 seconds, and a webhook's answer is a part of that.
GRACE_SECONDS: Final = 60.0
#: Another writer was faster, and the informer is about to tell what it wrote. If it does not, this does.
_SECONDS_AFTER_A_LOST_RACE: Final = 0.1
#: Between two counts of one namespace, so that many pods become one write.
_PAUSE_SECONDS: Final = 0.1
#: The key under which it is found out by which terms pods are charged.
_TERMS: Final = ""


class QuotaTallies(Reconciler[str]):
    """Keys are namespaces."""

    name: ClassVar[str] = "quota-tallies"
    workers: ClassVar[int] = 8
    longest_wait: ClassVar[float] = 30.0

    def __init__(
        self,
        api: Api,
        followed: FollowedQuotas,
        *,
        grace: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._followed = followed
        self._grace = grace
        self._clock = clock
        self._terms: Terms | None = None
        #: When each reservation was first seen here, by namespace and UID: no other clock is believed.
        self._seen: dict[str, dict[str, float]] = {}
        self._add: Callable[[str], None] = lambda _key: None
        self._log = structlog.get_logger()

    def triggers(self) -> Iterator[Trigger[str]]:
        followed = self._followed
        for quotas in (followed.gpu_quotas, followed.resource_quotas):
            yield Trigger(quotas, lambda key, _old, _new: (key[0],))
        yield Trigger(followed.tallies, lambda key, _old, _new: (key[1],))
        yield Trigger(followed.pods, lambda key, _old, _new: (key[0],) if followed.has_quota(key[0]) else ())
        of_terms: list[Informer[Any]] = [followed.slices, followed.nodes, followed.policies]
        for informer in of_terms:
            yield Trigger(informer, lambda _key, _old, _new: (_TERMS,))

    def first_keys(self) -> Iterable[str]:
        return (_TERMS,)

    def attach(self, add: Callable[[str], None]) -> None:
        self._add = add

    async def reconcile(self, key: str) -> float | None:
        if key == _TERMS:
            self._renew_terms()
            return None
        if self._terms is None:
            return _PAUSE_SECONDS  # nothing was counted yet
        known = self._followed.tallies.store.get(self._followed.home, key)
        try:
            if not self._followed.has_quota(key):
                await self._remove(key, known)
                return None
            return await self._count(key, known, self._terms)
        except ApiError as error:
            # Where none was known, there is no such kind of object: that does not mend itself in a moment.
            if error.conflict or (error.not_found and known is not None):
                return _SECONDS_AFTER_A_LOST_RACE
            raise

    def metrics(self) -> Iterator[Metric]:
        labels = ["namespace", "quota", "resource"]
        used = GaugeMetricFamily(
            "gpuslice_quota_used",
            "What pods hold of a quota, and what is reserved for new ones: memory in bytes, cores in percent of a GPU, "
            "devices, or a resource's own unit.",
            labels=labels,
        )
        hard = GaugeMetricFamily("gpuslice_quota_hard", "What a quota allows.", labels=labels)
        reserved = GaugeMetricFamily(
            "gpuslice_quota_reservations", "Pods that were admitted and are not counted yet.", labels=labels[:1]
        )
        for (_, namespace), tally in self._followed.tallies.store.items():
            reserved.add_metric([namespace], len(tally.spec.reservations))
            for quota, count in tally.spec.quotas.items():
                for resource, amount in count.hard.items():
                    hard.add_metric([namespace, quota, resource], amount)
                    used.add_metric([namespace, quota, resource], count.used.get(resource, 0))
        yield from (used, hard, reserved)

    def _renew_terms(self) -> None:
        terms = self._followed.terms()
        if terms != self._terms:
            self._terms = terms
            for namespace in self._followed.namespaces():
                self._add(namespace)

    async def _count(self, namespace: str, known: FollowedTally | None, terms: Terms) -> float | None:
        before = known.spec if known is not None else TallySpec()
        expired = await self._expired(namespace, before)
        wanted = recount(self._followed.quotas(namespace), self._followed.counted(namespace, terms), before, expired)
        if known is None or wanted != before:
            await self._write(namespace, known, wanted)
            await asyncio.sleep(_PAUSE_SECONDS)
        return self._next_expiry(namespace, wanted)

    async def _write(self, namespace: str, known: FollowedTally | None, wanted: TallySpec) -> None:
        document: Any = schema.tally_document(namespace, self._followed.home, wanted)
        if known is None:
            await self._api.create(QUOTA_TALLIES, document, namespace=self._followed.home)
        else:
            document["metadata"]["resourceVersion"] = known.version
            await self._api.replace(QUOTA_TALLIES, namespace, document, namespace=self._followed.home)

    async def _remove(self, namespace: str, known: FollowedTally | None) -> None:
        self._seen.pop(namespace, None)
        if known is not None:
            await self._api.delete(
                QUOTA_TALLIES,
                namespace,
                namespace=self._followed.home,
                preconditions={"resourceVersion": known.version},
            )

    async def _expired(self, namespace: str, tally: TallySpec) -> set[str]:
        """The reservations whose pods will never come."""
        before = self._seen.get(namespace, {})
        now = self._clock()
        seen = self._seen[namespace] = {uid: before.get(uid, now) for uid in tally.reservations}
        old = [uid for uid, since in seen.items() if now - since >= self._grace]
        return {uid for uid in old if not await self._exists(namespace, tally.reservations[uid].pod, uid)}

    async def _exists(self, namespace: str, name: str, uid: str) -> bool:
        try:
            found = await self._api.get(PODS, name, ObjectMetadata, namespace=namespace, accept=calls.METADATA)
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return found.metadata.uid == uid

    def _next_expiry(self, namespace: str, tally: TallySpec) -> float | None:
        seen = self._seen.get(namespace, {})
        waits = [seen.get(uid, self._clock()) + self._grace - self._clock() for uid in tally.reservations]
        return max(_SECONDS_AFTER_A_LOST_RACE, min(waits)) if waits else None
