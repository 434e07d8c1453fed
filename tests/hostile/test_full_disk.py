"""A state folder that is full: all that is given back is given back, an agent can start, and pods start again later."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.node import kubernetes_node
from tests.node.conftest import claim_server, folder
from tests.node.device_manager import DeviceManager
from tests.node.kubelet import Share
from tests.node.test_storage import fill
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.node.kubelet import ClaimServer
    from tests.node.kubernetes_node import KubernetesNode
    from tests.support import Simulated

__all__ = ["claim_server", "folder"]  # fixtures of tests/node

SHARED = "nvidia.com/gpu-shared"


@pytest.fixture
def small_node(
    simulated: Simulated, gpuslice_command: Path, folder: Path, claim_server: ClaimServer
) -> Iterator[KubernetesNode]:
    """A node whose state folder is on a disk of one MiB. Its agent is not started."""
    node = kubernetes_node.make(simulated("2xA100-40GB"), gpuslice_command, folder, claim_server)
    state = node.agent.state
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs", state], check=True)
    try:
        yield node
        if node.agent.process is not None and node.agent.process.poll() is None:
            node.agent.stop()
    finally:
        subprocess.run(["umount", state], check=True)
    log = node.agent.log.read_text()
    assert "Traceback" not in log, log


def test_claims_are_given_back_on_a_full_disk_and_pods_start_again_afterwards(small_node: KubernetesNode) -> None:
    node, state = small_node, small_node.agent.state
    node.agent.start()
    kept, *claims = (node.claim(f"claim-{number}", Share(node.device(), memory="1Gi")) for number in range(5))
    partition = node.claim("mig", Share(f"{node.device(1)}-mig-3g-20gb-0"))
    for claim in (kept, *claims, partition):
        node.kubelet.prepared(claim)
    filler = fill(state)
    late = node.claim("late", Share(node.device(), memory="1Gi"))
    assert "No space left" in node.kubelet.prepare(late)[late.uid].error
    assert node.kubelet.unprepare(late, *claims[:2]) == {late.uid: "", **{claim.uid: "" for claim in claims[:2]}}
    # As full as before, and the agent is started again.
    fill(state)
    node.agent.kill()
    node.agent.start()
    assert {session.workload.claim_uid for session in node.sessions() if session.workload} == {
        claim.uid for claim in (kept, *claims[2:], partition)
    }
    fill(state)
    gone = (*claims[2:], partition)
    assert node.kubelet.unprepare(*gone) == {claim.uid: "" for claim in gone}
    assert node.checkpoint().keys() == {kept.uid}
    for path in (filler, state / "filler"):
        path.unlink(missing_ok=True)
    node.kubelet.prepared(late)
    assert node.kubelet.unprepare(kept, late) == {kept.uid: "", late.uid: ""}
    assert node.leftovers() == []


def test_slots_are_given_back_on_a_full_disk(small_node: KubernetesNode) -> None:
    node = small_node
    node.agent.options += ["--backend", "extended"]
    node.agent.start()
    kubelet = DeviceManager(node.kubelet.folder).start()
    try:
        kubelet.devices(SHARED)
        mine = [f"{node.gpus[0]}-{number}" for number in range(2)]
        kubelet.allocate(SHARED, mine)
        kubelet.pods["team", "trainer-0", "main"] = {SHARED: mine}
        eventually(lambda: [claim["pod"] for claim in node.checkpoint().values()] == ["trainer-0"])
        fill(node.agent.state)
        del kubelet.pods["team", "trainer-0", "main"]
        eventually(lambda: node.sessions() == [], "the pod is gone")
        assert node.checkpoint() == {}
    finally:
        kubelet.stop()
