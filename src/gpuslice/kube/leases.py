"""Leader election on a Lease: of all contenders, at most one works at a time.

A lease is taken over only when it has not changed for its whole duration by the watcher's own monotonic clock; what
time others write into it is never compared with ours, so clocks may differ. A leader that cannot renew gives up
before that duration is over: its work is stopped first, then another's can begin. Every write names the version that it
replaces, so of two that try at once only one succeeds.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from gpuslice.kube.errors import ApiError, LeadershipLostError, UnreachableError
from gpuslice.kube.resources import LEASES, Metadata
from gpuslice.system import timestamps
from gpuslice.system.supervised.tasks import cancel_and_wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gpuslice.kube.client.api import Api

_RELEASED_SECONDS: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How long a lease is good for, by when it must be renewed, and how often that is tried. In this order of size."""

    duration: int = 15
    deadline: float = 10.0
    interval: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.deadline > self.interval > 0:
            raise ValueError(f"a lease's duration, deadline and interval must fall in this order, not as in {self}")


class _LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _LeaseSpec = _LeaseSpec()


class LeaderElection:
    """One contender. `leading` is set while it may work."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str, terms: Terms | None = None) -> None:
        self.leading: Final = asyncio.Event()
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._terms = terms or Terms()
        #: The lease as last seen, and when it was first seen so.
        self._seen: _Lease | None = None
        self._seen_at = time.monotonic()
        self._log = structlog.get_logger().bind(lease=f"{namespace}/{name}", identity=identity)

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Waits for its turn, works, and gives the lease back when the work ends or this is cancelled.

        Raises LeadershipLostError, with the work stopped, if the lease is lost.
        """
        await self._acquire()
        self._log.info("this process is the leader")
        self.leading.set()
        working = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(working)
            self.leading.clear()
            await cancel_and_wait(renewing)
            if renewing.cancelled():
                await asyncio.shield(self._release())
        if working.done() and not working.cancelled():
            working.result()
        if not renewing.cancelled():
            renewing.result()

    async def _acquire(self) -> None:
        while True:
            try:
                if await self._try():
                    return
            except (ApiError, UnreachableError) as error:
                self._log.warning("the lease cannot be had now; trying again", error=str(error))
            await asyncio.sleep(self._terms.interval)

    async def _try(self) -> bool:
        """Takes or renews the lease if that is right now."""
        try:
            lease = await self._api.get(LEASES, self._name, _Lease, namespace=self._namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            return await self._write(None)
        if self._seen is None or lease.spec != self._seen.spec or lease.metadata.uid != self._seen.metadata.uid:
            self._seen, self._seen_at = lease, time.monotonic()
        holder = lease.spec.holder_identity
        if holder and holder != self._identity:
            duration = lease.spec.lease_duration_seconds or self._terms.duration
            if time.monotonic() - self._seen_at < duration:
                return False
        return await self._write(lease)

    async def _write(self, current: _Lease | None) -> bool:
        """Makes the lease ours, for another duration, unless another process was faster."""
        now = timestamps.micro_time()
        held = current is not None and current.spec.holder_identity == self._identity
        old = current.spec if current is not None else _LeaseSpec()
        transitions = old.lease_transitions or 0
        spec = _LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=self._terms.duration,
            acquire_time=old.acquire_time if held else now,
            renew_time=now,
            lease_transitions=transitions if held or current is None else transitions + 1,
        )
        try:
            if current is None:
                await self._api.create(LEASES, self._document(spec), namespace=self._namespace)
            else:
                document = self._document(spec, current.metadata.resource_version)
                await self._api.replace(LEASES, self._name, document, namespace=self._namespace)
        except ApiError as error:
            if not error.conflict:
                raise
            return False
        return True

    async def _renew(self) -> None:
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self._terms.interval)
            left = renewed + self._terms.deadline - time.monotonic()
            asked = time.monotonic()
            try:
                # A call that hangs must not outlive the deadline. What counts is when we asked, not the answer.
                async with asyncio.timeout(max(left, 0)):
                    if await self._try():
                        renewed = asked
                        continue
            except (ApiError, UnreachableError) as error:
                self._log.warning("the lease was not renewed; trying again", error=str(error))
            except TimeoutError:
                pass
            holder = self._seen.spec.holder_identity if self._seen is not None else None
            if (holder and holder != self._identity) or time.monotonic() - renewed >= self._terms.deadline:
                raise LeadershipLostError(
                    f"the lease {self._namespace}/{self._name} was lost"
                    + (f" to {holder}" if holder and holder != self._identity else ": it could not be renewed in time")
                )

    async def _release(self) -> None:
        """Lets the next one begin at once. Without it, they wait for the lease to run out."""
        with suppress(ApiError, UnreachableError, TimeoutError):
            async with asyncio.timeout(self._terms.interval):
                lease = await self._api.get(LEASES, self._name, _Lease, namespace=self._namespace)
                if lease.spec.holder_identity != self._identity:
                    return
                spec = msgspec.structs.replace(
                    lease.spec,
                    holder_identity="",
                    lease_duration_seconds=_RELEASED_SECONDS,
                    renew_time=timestamps.micro_time(),
                )
                document = self._document(spec, lease.metadata.resource_version)
                await self._api.replace(LEASES, self._name, document, namespace=self._namespace)
                self._log.info("the lease is given back")

    def _document(self, spec: _LeaseSpec, version: str = "") -> dict[str, Any]:
        metadata = {"name": self._name, "namespace": self._namespace}
        if version:
            metadata["resourceVersion"] = version
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
