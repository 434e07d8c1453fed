"""Which extended resources the GPU nodes of the cluster offer now, so that a pod is told when it asks in vain.

Only nodes with a GPU's label are followed. A node's status is written every five minutes and when something changes,
so a thousand such nodes are three or four to read per second, and of each only the names of its resources are kept.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from gpuslice.kube.resources import NODES, Metadata
from gpuslice.model import devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.kube.informers import Informer, Informers


class _Status(msgspec.Struct, frozen=True, gc=False):
    allocatable: dict[str, str] | None = None


class GpuNode(msgspec.Struct, frozen=True, gc=False):
    """A node, and what can be had on it."""

    metadata: Metadata
    status: _Status = _Status()


def follow(informers: Informers) -> Sequence[Informer[frozenset[str]]]:
    """One for each label that a node with GPUs may have."""
    return [informers.informer(NODES, GpuNode, offered, labels=f"{label}=true") for label in devices.NODE_LABELS]


def offered(node: GpuNode) -> frozenset[str]:
    """The extended resources of which the node has any. Those of Kubernetes itself have no domain."""
    found = node.status.allocatable or {}
    return frozenset(sys.intern(name) for name, amount in found.items() if "/" in name and amount != "0")


def together(followed: Sequence[Informer[frozenset[str]]]) -> frozenset[str] | None:
    """What any of the nodes offers. None if there is no GPU node: those to come may offer anything."""
    nodes = [resources for informer in followed for resources in informer.store.values()]
    return frozenset().union(*nodes) if nodes else None
