"""What the server needs of a cluster, and how it does without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpuslice.admission.context import Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.admission.backends.dra import Template


class Cluster(Protocol):
    """Kept by watches (`gpuslice.admission.cluster.state`), or fixed by a command line."""

    def context(self) -> Context:
        """What admission knows now. Asked for each review, so it must cost nothing."""

    async def ensure(self, namespace: str, templates: Sequence[Template]) -> None:
        """Returns when the claim templates are there. A GpusliceError says why they cannot be."""

    async def learn(self, namespace: str) -> None:
        """After an UnknownNamespaceError: sees that the context knows it. A GpusliceError says why it cannot."""

    def synced(self) -> bool:
        """Whether the context is whole. Until then the server is not ready."""


@dataclass(frozen=True, slots=True)
class StaticCluster:
    """No cluster: the context never changes, and there is no API server to make claim templates in."""

    fixed: Context = field(default_factory=Context)

    def context(self) -> Context:
        return self.fixed

    async def ensure(self, namespace: str, templates: Sequence[Template]) -> None:
        """Nothing to do."""

    async def learn(self, namespace: str) -> None:
        """Nothing to do."""

    def synced(self) -> bool:
        return True
