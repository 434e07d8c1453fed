"""What the two backends of a node have in common: `dra` (claims) and `extended` (slots of device plugins).

A node offers its GPUs through one backend at a time, so that no GPU is offered twice. The other one, or the same one
with slots of another name or size, may have pods from before; it looks after those until they are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuslice.node.claims.checkpoint import PreparedClaim


class NodeBackend(Protocol):
    """One way of offering the node's GPUs to the kubelet."""

    def owns(self, claim: PreparedClaim) -> bool:
        """Whether the claim was prepared through this backend."""

    def offers(self, claim: PreparedClaim) -> bool:
        """Whether this backend owns the claim, and would prepare it in the same way now."""

    async def serve_existing_pods(self) -> None:
        """Answers the kubelet for pods that already have GPUs, and offers none. `stop` ends it."""

    async def offer_gpus(self) -> None:
        """Offers the GPUs to the kubelet and the scheduler from now on."""

    async def unprepare_gone(self) -> None:
        """Unprepares the claims of pods that are gone. Raises AgentError where that cannot be told now."""

    async def withdraw(self) -> None:
        """Takes back what the backend published outside the node."""

    async def stop(self) -> None:
        """The kubelet learns that nothing is served here any more. What was prepared stays for the next agent."""
