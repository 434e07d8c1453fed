"""Reserves what a pod is charged in the tally of its namespace, before the pod is there.

The tally is read from the API server and written back on the condition that nothing has changed meanwhile, so that
replicas of the webhook, which know nothing of each other, never admit more than fits. Pods of one namespace that come
at the same time are reserved in one write. A webhook that is killed leaves reservations whose pods never come: the
controller drops them a minute later.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuslice.kube.errors import ApiError
from gpuslice.model.errors import GpusliceError
from gpuslice.quotas import tally as arithmetic
from gpuslice.quotas.schema import QUOTA_TALLIES
from gpuslice.quotas.stored_quotas import StoredTally

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.kube.client.api import Api
    from gpuslice.quotas.schema import TallySpec
    from gpuslice.quotas.tally import Charge

#: Each try but the last was lost to another writer that got on: with as many tries as this, hundreds of pods at once
#: do, while the API server waits ten seconds.
_TRIES: Final = 50
_LONGEST_PAUSE_SECONDS: Final = 0.05
#: Pods in one write.
_MOST_AT_ONCE: Final = 100


class BusyError(GpusliceError):
    """Raised when other writers were faster every time. Nothing is reserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A pod that is about to be created."""

    uid: str
    name: str
    charge: Charge
    #: Leaves nothing behind.
    dry_run: bool
    #: Raise a GpusliceError if the pod holds what a GpuQuota, or a ResourceQuota, could not count.
    check_for_gpus: Callable[[], None]
    check_for_names: Callable[[], None]


class QuotaReservations:
    """For one replica of the webhook. `home` is the namespace in which tallies are."""

    def __init__(self, api: Api, home: str) -> None:
        self._api = api
        self._home = home
        self._waiting: dict[str, list[tuple[Wanted, asyncio.Future[None]]]] = {}
        self._workers: set[asyncio.Task[None]] = set()

    async def reserve(self, namespace: str, wanted: Wanted) -> None:
        """Returns when it is reserved, or needs not be. Raises an OverQuotaError, what the checks of `wanted` raise, or
        another GpusliceError if it could not be found out.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(namespace)
        if waiting is not None:
            waiting.append((wanted, future))
        else:
            self._waiting[namespace] = [(wanted, future)]
            worker = asyncio.create_task(self._work(namespace))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        await future

    async def _work(self, namespace: str) -> None:
        waiting = self._waiting[namespace]
        while waiting:
            batch = waiting[:_MOST_AT_ONCE]
            del waiting[:_MOST_AT_ONCE]
            try:
                outcomes = await self._reserve_all(namespace, [wanted for wanted, _ in batch])
            except Exception as error:  # noqa: BLE001 - each review tells it, and the next ones are served
                outcomes = [error] * len(batch)
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if future.done():
                    continue  # the connection that asked is gone
                if outcome is None:
                    future.set_result(None)
                else:
                    future.set_exception(outcome)
        del self._waiting[namespace]

    async def _reserve_all(self, namespace: str, batch: list[Wanted]) -> list[Exception | None]:
        for number in range(_TRIES):
            if number:
                await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE_SECONDS))  # noqa: S311 - spreads writers
            try:
                found = await self._api.get(QUOTA_TALLIES, namespace, StoredTally, namespace=self._home)
            except ApiError as error:
                if error.not_found:
                    return [None] * len(batch)  # there is no quota in the namespace, or none any more
                raise
            before = found.spec
            after, outcomes = _decide(before, batch)
            try:
                if after is not before:
                    await self._write(namespace, found.metadata.resource_version, before, after)
            except ApiError as error:
                if error.conflict or error.not_found:
                    continue
                raise
            return outcomes
        raise BusyError(f"the quotas of namespace {namespace} change all the time; try again")

    async def _write(self, namespace: str, version: str, before: TallySpec, after: TallySpec) -> None:
        quotas = {
            key: {"used": count.used} for key, count in after.quotas.items() if count is not before.quotas.get(key)
        }
        new = {uid: each for uid, each in after.reservations.items() if uid not in before.reservations}
        changes = {"metadata": {"resourceVersion": version}, "spec": {"quotas": quotas, "reservations": new}}
        await self._api.merge(QUOTA_TALLIES, namespace, changes, namespace=self._home)


def _decide(tally: TallySpec, batch: list[Wanted]) -> tuple[TallySpec, list[Exception | None]]:
    """The tally with those that fit, in the order in which they came."""
    outcomes: list[Exception | None] = []
    for wanted in batch:
        try:
            if arithmetic.counts_gpus(tally):
                wanted.check_for_gpus()
            if arithmetic.counts_names(tally):
                wanted.check_for_names()
            reserved = arithmetic.reserve(tally, wanted.uid, wanted.name, wanted.charge)
        except Exception as error:  # noqa: BLE001 - it is of one pod, and the others of the batch are not to wait
            outcomes.append(error)
            continue
        if not wanted.dry_run:
            tally = reserved
        outcomes.append(None)
    return tally, outcomes
