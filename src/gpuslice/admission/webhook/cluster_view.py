"""What the server needs of a cluster, and how it does without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpuslice.admission.context import Context

if TYPE_CHECKING:
    from gpuslice.admission.cluster.quota_reservations import Wanted
    from gpuslice.admission.context import UnknownError


class Cluster(Protocol):
    """Kept by watches (`gpuslice.admission.cluster.state`), or fixed by a command line."""

    def context(self) -> Context:
        """What admission knows now. Asked for each review, so it must cost nothing."""

    async def learn(self, unknown: UnknownError) -> None:
        """Sees that the context knows it. A GpusliceError says why it cannot."""

    async def reserve(self, namespace: str, wanted: Wanted) -> None:
        """Returns when the pod is within its namespace's quotas and counted. A GpusliceError says why it is not."""

    def synced(self) -> bool:
        """Whether the context is whole. Until then the server is not ready."""


@dataclass(frozen=True, slots=True)
class StaticCluster:
    """No cluster: the context never changes."""

    fixed: Context = field(default_factory=Context)

    def context(self) -> Context:
        return self.fixed

    async def learn(self, unknown: UnknownError) -> None:
        """Nothing to do."""

    async def reserve(self, namespace: str, wanted: Wanted) -> None:
        """There are no quotas."""

    def synced(self) -> bool:
        return True
