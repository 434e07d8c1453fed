"""Writes into each GpuQuota's status what is used of it, by which pods, and whether it is held: for people alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from gpuslice.kube.errors import ApiError
from gpuslice.kube.reconciler import Reconciler, Trigger
from gpuslice.kube.store import by_namespace
from gpuslice.policies.stored_policies import Condition
from gpuslice.quotas.schema import GPU_QUOTAS, KIND, GpuQuotaStatus, StatusUser, quota_key
from gpuslice.quotas.tally import show
from gpuslice.system import timestamps

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from gpuslice.controller.followed_quotas import FollowedGpuQuota, FollowedQuotas
    from gpuslice.kube.client.api import Api
    from gpuslice.kube.store import Key
    from gpuslice.quotas.schema import Count

HELD: Final = "Held"
#: Between two writes of one status, so that many pods become one write.
_PAUSE_SECONDS: Final = 0.2


class QuotaStatus(Reconciler["Key"]):
    """Keys are namespace and name. `excluded`: namespaces of which no webhook is asked; None: it is asked of none."""

    name: ClassVar[str] = "quota-status"
    workers: ClassVar[int] = 8
    longest_wait: ClassVar[float] = 30.0

    def __init__(self, api: Api, followed: FollowedQuotas, excluded: Collection[str] | None) -> None:
        self._api = api
        self._followed = followed
        self._excluded = excluded
        self._by_namespace = followed.gpu_quotas.store.index(by_namespace)

    def triggers(self) -> Iterator[Trigger[Key]]:
        yield Trigger(self._followed.gpu_quotas, lambda key, _old, new: (key,) if new is not None else ())
        yield Trigger(self._followed.tallies, lambda key, _old, _new: self._by_namespace.keys(key[1]))

    async def reconcile(self, key: Key) -> None:
        namespace, name = key
        quota = self._followed.gpu_quotas.store.get(namespace, name)
        tally = self._followed.tallies.store.get(self._followed.home, namespace)
        count = tally.spec.quotas.get(quota_key(KIND, name)) if tally is not None else None
        if quota is None or count is None:
            return
        wanted = self._status(namespace, quota, count)
        if wanted == quota.status:
            return
        changes = {"status": msgspec.to_builtins(wanted)}
        for field in ("used", "usedOfHard"):
            # A merge patch keeps what it does not name.
            old = msgspec.to_builtins(quota.status).get(field, {})
            changes["status"][field] = dict.fromkeys(old) | changes["status"].get(field, {})
        changes["status"].setdefault("largest", [])
        try:
            await self._api.merge(GPU_QUOTAS, name, changes, namespace=namespace, part="status")
        except ApiError as error:
            if not error.not_found:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)

    def _status(self, namespace: str, quota: FollowedGpuQuota, count: Count) -> GpuQuotaStatus:
        return GpuQuotaStatus(
            used=_shown(count.used),
            used_of_hard={
                name: f"{show(name, count.used.get(name, 0))}/{show(name, hard)}" for name, hard in count.hard.items()
            },
            largest=tuple(StatusUser(user.pod, _shown(user.used)) for user in count.largest),
            observed_generation=quota.generation,
            conditions=(self._held(namespace, quota),),
        )

    def _held(self, namespace: str, quota: FollowedGpuQuota) -> Condition:
        if self._excluded is None:
            status, reason, message = "False", "NoWebhook", "the controller keeps no webhook that could refuse pods"
        elif namespace in self._excluded:
            status, reason, message = "False", "Excluded", "no webhook is asked about the pods of this namespace"
        else:
            status, reason, message = "True", "Counted", "pods that do not fit are refused"
        known = next((each for each in quota.status.conditions if each.type == HELD and each.status == status), None)
        return Condition(
            type=HELD,
            status=status,
            reason=reason,
            message=message,
            last_transition_time=known.last_transition_time if known is not None else timestamps.time(),
            observed_generation=quota.generation,
        )


def _shown(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: show(name, amount) for name, amount in amounts.items()}
