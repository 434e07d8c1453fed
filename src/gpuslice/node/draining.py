"""Waiting until no pod has GPUs in another way than the node offers them now.

A GPU must not be offered while pods that got it otherwise are on it: the scheduler knows nothing of those. They are
served meanwhile, and can end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from gpuslice.node.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import structlog

    from gpuslice.node.backend import NodeBackend
    from gpuslice.node.claims.checkpoint import PreparedClaim
    from gpuslice.node.claims.preparing import ClaimPreparer

_WAIT_SECONDS: Final = 2.0
_MOST_PODS_NAMED: Final = 8


class Drain:
    """Drains the other backend, and slots of this one that have another name or size."""

    def __init__(
        self,
        chosen: NodeBackend,
        other: NodeBackend,
        preparer: ClaimPreparer,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._chosen = chosen
        self._other = other
        self._preparer = preparer
        self._log = log
        self._complaint = ""
        self._named = ""

    async def is_needed(self) -> bool:
        """Whether pods remain, after those that are known to be gone were unprepared."""
        return bool(await self._remaining())

    async def drain_other_backend(self) -> None:
        """Returns when no pod remains."""
        serves = any(self._other.owns(claim) for claim in self._unlike_now())
        if serves:  # a pod with claims can only end when the kubelet's call to unprepare them is answered
            await self._other.serve_existing_pods()
        while remaining := await self._remaining():
            self._name_pods(remaining)
            await asyncio.sleep(_WAIT_SECONDS)
        if serves:
            await self._other.stop()

    def _name_pods(self, remaining: Sequence[PreparedClaim]) -> None:
        pods = ", ".join(sorted({claim.pod_title for claim in remaining})[:_MOST_PODS_NAMED])
        if pods != self._named:
            self._named = pods
            self._log.warning(
                "nothing is offered until pods that have GPUs through the other backend, or in slots of another "
                "name or size, are gone: drain the node, or run the agent as before",
                pods=pods,
            )

    async def _remaining(self) -> list[PreparedClaim]:
        """What was prepared otherwise than it would be now, and is not known to be gone."""
        try:
            await self._other.unprepare_gone()
            if any(self._chosen.owns(claim) for claim in self._unlike_now()):
                await self._chosen.unprepare_gone()
            self._complaint = ""
        except AgentError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                self._log.warning("cannot tell whether pods are gone", reason=str(error))
        return self._unlike_now()

    def _unlike_now(self) -> list[PreparedClaim]:
        return [claim for claim in self._preparer.claims.values() if not self._chosen.offers(claim)]
