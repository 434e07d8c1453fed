"""Tenants that hold on to a MIG partition: it is not taken from under another, is given back later, and never leaks."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.native.inside import python_path
from tests.node.conftest import claim_server, folder, make_kubernetes_node, node
from tests.node.kubelet import Share
from tests.node.test_breach import User

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.node.kubelet import TestClaim
    from tests.node.kubernetes_node import KubernetesNode

__all__ = ["claim_server", "folder", "make_kubernetes_node", "node"]  # fixtures of tests/node

PROGRAM = str(Path(__file__).parents[1] / "node" / "gpu_user.py")
MIB = 1 << 20


@contextmanager
def holding(node: KubernetesNode, claim: TestClaim) -> Iterator[User]:
    """A process on the claim's partition that no interposer stands in front of."""
    (session,) = node.sessions(claim)
    visible = {"CUDA_VISIBLE_DEVICES": session.gpus[0].uuid}
    user = User(node.machine.start([sys.executable, PROGRAM], **python_path(), **visible))
    try:
        user.do("take", 10 * MIB)
        yield user
    finally:
        user.close()


def partition(node: KubernetesNode, name: str, start: int) -> TestClaim:
    return node.claim(name, Share(f"{node.device(1)}-mig-1g-5gb-{start}"))


def mig_devices(node: KubernetesNode) -> set[str]:
    """As NVML says."""
    found = node.machine.run([sys.executable, "-c", _LIST], extra=python_path()).stdout.split()
    return set(found)


_LIST = """
import pynvml
pynvml.nvmlInit()
for index in range(pynvml.nvmlDeviceGetCount()):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)))
        except pynvml.NVMLError:
            continue
"""


def test_a_partition_in_use_stays_until_its_process_is_gone(node: KubernetesNode) -> None:
    held, neighbour = partition(node, "held", 0), partition(node, "neighbour", 1)
    node.kubelet.prepared(held)
    node.kubelet.prepared(neighbour)
    before = mig_devices(node)
    with holding(node, held) as tenant, holding(node, neighbour) as other:
        for _ in range(3):  # the kubelet asks again and again
            assert "a process uses it" in node.kubelet.unprepare(held)[held.uid]
        assert mig_devices(node) == before
        tenant.do("take", MIB)  # nothing was taken from under it
        other.do("take", MIB)
        # An agent that is started anew neither forgets it nor destroys it.
        node.agent.kill()
        node.agent.start()
        assert mig_devices(node) == before
        assert "a process uses it" in node.kubelet.unprepare(held)[held.uid]
    assert node.kubelet.unprepare(held, neighbour) == {held.uid: "", neighbour.uid: ""}
    assert mig_devices(node) == set()
    assert node.leftovers() == []


def test_the_neighbours_of_a_held_partition_come_and_go(node: KubernetesNode) -> None:
    held = partition(node, "held", 0)
    node.kubelet.prepared(held)
    with holding(node, held):
        assert node.kubelet.unprepare(held)[held.uid]
        for round_ in range(3):
            other = partition(node, f"other-{round_}", 1)
            node.kubelet.prepared(other)
            assert len(mig_devices(node)) == 2
            assert node.kubelet.unprepare(other) == {other.uid: ""}
            assert len(mig_devices(node)) == 1
    assert node.kubelet.unprepare(held) == {held.uid: ""}
    assert node.leftovers() == []


def test_a_place_that_a_tenant_still_holds_is_not_given_to_the_next(node: KubernetesNode) -> None:
    """Even if a scheduler believes the claim gone and allocates it: the same instance never serves two claims."""
    held = partition(node, "held", 0)
    node.kubelet.prepared(held)
    with holding(node, held):
        assert node.kubelet.unprepare(held)[held.uid]
        following = partition(node, "following", 0)
        answer = node.kubelet.prepare(following)[following.uid]
        assert answer.error
    assert node.kubelet.unprepare(held) == {held.uid: ""}
    node.kubelet.prepared(following)
    assert len(mig_devices(node)) == 1
    assert node.kubelet.unprepare(following) == {following.uid: ""}
    assert node.leftovers() == []


def test_a_watcher_of_a_partition_does_not_take_it_along(node: KubernetesNode) -> None:
    device = f"{node.device(1)}-mig-1g-5gb-0"
    owner, administrator = node.claim("owner", Share(device)), node.claim("monitor", Share(device, admin=True))
    node.kubelet.prepared(owner)
    node.kubelet.prepared(administrator)
    before = mig_devices(node)
    assert len(before) == 1
    assert node.kubelet.unprepare(administrator) == {administrator.uid: ""}
    assert mig_devices(node) == before
    assert node.kubelet.unprepare(owner) == {owner.uid: ""}
    assert mig_devices(node) == set()
    assert node.leftovers() == []
