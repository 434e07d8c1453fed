"""The file of one claim is torn: the other claims go on, and its own is made anew or undone, with no hand needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.node.device_manager import DeviceManager
from tests.node.kubelet import Share
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.node.conftest import MakeKubernetesNode
    from tests.node.kubelet import TestClaim
    from tests.node.kubernetes_node import KubernetesNode

SHARED = "nvidia.com/gpu-shared"


def tear(node: KubernetesNode, uid: str) -> None:
    """What a disk leaves that lost the end of a file."""
    path = node.agent.state / "prepared" / f"{uid}.json"
    path.write_bytes(path.read_bytes()[:40])


@pytest.fixture
def claims(node: KubernetesNode) -> tuple[TestClaim, TestClaim]:
    """One with a share and a partition, which is to be torn, and another."""
    torn = node.claim(
        "torn", Share(node.device(), memory="1Gi"), Share(f"{node.device(1)}-mig-3g-20gb-0", request="mig")
    )
    whole = node.claim("whole", Share(node.device(), memory="2Gi"))
    for claim in (torn, whole):
        node.kubelet.prepared(claim)
    return torn, whole


def test_a_torn_claim_that_the_cluster_has_is_written_down_anew(
    node: KubernetesNode, claims: tuple[TestClaim, TestClaim]
) -> None:
    torn, whole = claims
    before = {session.id: session.token for session in node.sessions()}
    node.agent.kill()
    tear(node, torn.uid)
    node.agent.start()
    assert node.kubelet.prepared(whole)
    eventually(lambda: node.checkpoint().keys() == {torn.uid, whole.uid}, seen=node.agent.log.read_text)
    eventually(lambda: node.checkpoint()[torn.uid]["phase"] == "prepared")
    assert {session.id: session.token for session in node.sessions()} == before
    (line,) = node.agent.audit("quarantine")
    assert (line["claim"], line["error_code"]) == (torn.uid, "broken_checkpoint")
    assert node.kubelet.unprepare(torn, whole) == {torn.uid: "", whole.uid: ""}
    assert node.leftovers() == []


def test_a_torn_claim_that_is_gone_is_undone(node: KubernetesNode, claims: tuple[TestClaim, TestClaim]) -> None:
    torn, whole = claims
    node.agent.kill()
    tear(node, torn.uid)
    del node.api.claims[torn.name]
    node.agent.start()
    eventually(lambda: not node.sessions(torn), seen=node.agent.log.read_text)
    eventually(lambda: list((node.agent.state / "partitions").glob("*.json")) == [])
    assert len(node.sessions(whole)) == 1
    assert node.kubelet.unprepare(whole) == {whole.uid: ""}
    eventually(lambda: node.leftovers() == [], seen=node.leftovers)


def test_a_torn_claim_is_unprepared_with_all_that_it_has(
    node: KubernetesNode, claims: tuple[TestClaim, TestClaim]
) -> None:
    torn, whole = claims
    node.agent.kill()
    tear(node, torn.uid)
    node.api.close()  # so that nothing can be learnt of it
    node.agent.start()
    assert len(node.sessions(torn)) == 2
    assert node.kubelet.unprepare(torn, whole) == {torn.uid: "", whole.uid: ""}
    assert node.leftovers() == []


def test_a_torn_file_of_version_1_leaves_everything_as_it_is(
    node: KubernetesNode, claims: tuple[TestClaim, TestClaim]
) -> None:
    before = {session.id: session.token for session in node.sessions()}
    node.agent.kill()
    for path in (node.agent.state / "prepared").iterdir():
        path.unlink()
    (node.agent.state / "claims.json").write_bytes(b'{"version":1,"cla')
    node.agent.start()
    assert {session.id: session.token for session in node.sessions()} == before
    eventually(lambda: len(node.checkpoint()) == 2, "both are written down anew")
    assert node.kubelet.unprepare(*claims) == {claim.uid: "" for claim in claims}
    assert node.leftovers() == []


def test_the_torn_file_of_a_container_with_slots_is_made_anew(make_kubernetes_node: MakeKubernetesNode) -> None:
    node = make_kubernetes_node(options=("--backend", "extended"))
    kubelet = DeviceManager(node.kubelet.folder).start()
    try:
        kubelet.devices(SHARED)
        mine = [f"{node.gpus[0]}-{number}" for number in range(2)]
        kubelet.allocate(SHARED, mine)
        kubelet.pods["team", "trainer-0", "main"] = {SHARED: mine}
        (before,) = node.sessions()
        node.agent.kill()
        tear(node, before.id)
        node.agent.start()
        eventually(lambda: node.checkpoint().keys() == {before.id})
        (after,) = node.sessions()
        assert after.token == before.token
        node.agent.kill()
        tear(node, before.id)
        kubelet.pods.clear()
        node.agent.start()
        eventually(lambda: node.sessions() == [], "the pod is gone")
        eventually(lambda: list((node.agent.state / "prepared").iterdir()) == [])
    finally:
        kubelet.stop()
