"""How the GPU nodes of the cluster offer their GPUs now: by which backends, and as which extended resources.

Only nodes with a GPU's label are followed. A node's status is written every five minutes and when something changes,
so a thousand such nodes are three or four to read per second, and of each only the names of its resources are kept.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from gpuslice.kube.resources import NODES, Metadata
from gpuslice.model import devices
from gpuslice.model.policies import Backend

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuslice.kube.informers import Informer, Informers


class _Status(msgspec.Struct, frozen=True, gc=False):
    allocatable: dict[str, str] | None = None


class GpuNode(msgspec.Struct, frozen=True, gc=False):
    """A node, and what can be had on it."""

    metadata: Metadata
    status: _Status = _Status()


class NodeOffer(msgspec.Struct, frozen=True, gc=False):
    """The extended resources of a node. Those of Kubernetes itself have no domain."""

    #: Those of which it has any.
    now: frozenset[str] = frozenset()
    #: Those of which it has none: a device plugin is away for a moment, or will not come back.
    none: frozenset[str] = frozenset()


def follow(informers: Informers) -> Sequence[Informer[NodeOffer]]:
    """One for each label that a node with GPUs may have."""
    return [informers.informer(NODES, GpuNode, offered, labels=f"{label}=true") for label in devices.NODE_LABELS]


def offered(node: GpuNode) -> NodeOffer:
    found = {name: amount for name, amount in (node.status.allocatable or {}).items() if "/" in name}
    return NodeOffer(
        now=frozenset(sys.intern(name) for name, amount in found.items() if amount != "0"),
        none=frozenset(sys.intern(name) for name, amount in found.items() if amount == "0"),
    )


def together(nodes: Sequence[NodeOffer]) -> frozenset[str] | None:
    """What any of the nodes offers. None if there is no GPU node: those to come may offer anything."""
    return frozenset().union(*(node.now for node in nodes)) if nodes else None


def backends(nodes: Iterable[NodeOffer], shared_resource: str, *, published: bool) -> frozenset[Backend]:
    """How GPUs are offered: by claims if any are published, and in slots.

    The kubelet keeps the name of a resource whose device plugin is gone. While an agent starts again, that name says
    how the node offers its GPUs; where others publish theirs, it may be what is left of a time before.
    """
    found = {Backend.DRA} if published else set()
    nodes = tuple(nodes)
    if any(shared_resource in node.now for node in nodes) or (
        not published and any(shared_resource in node.none for node in nodes)
    ):
        found.add(Backend.EXTENDED)
    return frozenset(found)
