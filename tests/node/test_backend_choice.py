"""An agent that is told nothing offers its GPUs by claims where the cluster serves them, else in slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from tests.node.device_manager import DeviceManager
from tests.node.kubelet import Share
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.conftest import MakeKubernetesNode
    from tests.node.kubelet import ClaimServer
    from tests.node.kubernetes_node import KubernetesNode

SHARED = "nvidia.com/gpu-shared"


@pytest.fixture
def kubelet(node: KubernetesNode) -> Iterator[DeviceManager]:
    manager = DeviceManager(node.kubelet.folder).start()
    yield manager
    manager.stop()


def restart(node: KubernetesNode) -> None:
    node.agent.stop()
    node.agent.start()


def test_claims_are_offered_where_they_are_served(node: KubernetesNode, kubelet: DeviceManager) -> None:
    node.kubelet.prepared(node.claim("first", Share(node.device(), memory="1Gi")))
    assert not kubelet.watched


@pytest.mark.parametrize("slices", [None, "unshared"], ids=["no-resource.k8s.io/v1", "no-consumable-capacity"])
def test_slots_are_offered_where_claims_are_not_served(
    node: KubernetesNode, kubelet: DeviceManager, claim_server: ClaimServer, slices: Literal["unshared"] | None
) -> None:
    claim_server.slices = slices
    restart(node)
    assert len(kubelet.devices(SHARED)) == 20
    assert not node.kubelet.registration_socket.exists()
    eventually(lambda: "claims are not served" in node.agent.log.read_text(), seen=node.agent.log.read_text)


def test_an_api_server_that_cannot_tell_is_asked_again(
    node: KubernetesNode, kubelet: DeviceManager, claim_server: ClaimServer
) -> None:
    claim_server.slices = 503
    restart(node)
    eventually(lambda: "is not known yet" in node.agent.log.read_text())
    assert not kubelet.watched
    assert not node.kubelet.registration_socket.exists()

    claim_server.slices = None
    assert len(kubelet.devices(SHARED)) == 20


def test_a_node_stays_with_slots_while_pods_have_them(
    make_kubernetes_node: MakeKubernetesNode, claim_server: ClaimServer
) -> None:
    """Or a cluster that is upgraded would offer no GPU until the last of them ends."""
    claim_server.slices = None
    node = make_kubernetes_node()
    kubelet = DeviceManager(node.kubelet.folder).start()
    try:
        wanted = sorted(kubelet.devices(SHARED))[:2]
        kubelet.allocate(SHARED, wanted)
        kubelet.pods["team", "trainer-0", "main"] = {SHARED: wanted}
        eventually(lambda: all(session.workload and session.workload.pod for session in node.sessions()))
        claim_server.slices = "whole"
        kubelet.watched.clear()
        restart(node)
        assert len(kubelet.devices(SHARED)) == 20

        kubelet.pods.clear()
        eventually(lambda: not node.sessions(), "the pod's session is gone")
        restart(node)
        eventually(node.kubelet.registration_socket.exists, "claims are served")
    finally:
        kubelet.stop()
