"""GPUs as extended resources: slots and whole ones, each GPU in one of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import grpc
import pytest

from tests.interposer.conftest import build
from tests.node.container import Container
from tests.node.device_manager import DeviceManager
from tests.node.kubelet import Share
from tests.node.kubernetes_node import GIB
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interposer.conftest import Build
    from tests.node.conftest import MakeKubernetesNode
    from tests.node.kubernetes_node import KubernetesNode

__all__ = ["build"]  # a fixture of tests/interposer

SHARED, WHOLE = "nvidia.com/gpu-shared", "nvidia.com/gpu"
EXTENDED = ("--backend", "extended", "--gpu-policy", "1=whole")


@pytest.fixture
def node(make_kubernetes_node: MakeKubernetesNode) -> KubernetesNode:
    """A machine with one GPU in slots and one that is given out whole."""
    return make_kubernetes_node(options=EXTENDED)


@pytest.fixture
def kubelet(node: KubernetesNode) -> Iterator[DeviceManager]:
    manager = DeviceManager(node.kubelet.folder).start()
    yield manager
    manager.stop()


def slots(node: KubernetesNode, count: int = 10, gpu: int = 0) -> list[str]:
    return [f"{node.gpus[gpu]}-{number}" for number in range(count)]


# ---- what is offered ----


def test_each_gpu_is_in_one_resource(node: KubernetesNode, kubelet: DeviceManager) -> None:
    assert kubelet.devices(SHARED) == dict.fromkeys(slots(node), "Healthy")
    assert kubelet.devices(WHOLE) == {f"{node.gpus[1]}-0": "Healthy"}


def test_with_slots_there_are_no_claims(node: KubernetesNode, kubelet: DeviceManager) -> None:
    kubelet.devices(SHARED)
    assert not node.kubelet.endpoint.exists()
    assert not node.kubelet.registration_socket.exists()


def test_a_gpu_that_fails_is_offered_as_unhealthy(node: KubernetesNode, kubelet: DeviceManager) -> None:
    kubelet.devices(SHARED)
    health = node.agent.state / "health"
    health.mkdir(exist_ok=True)
    (health / node.gpus[0]).write_text('{"xid": 48}')
    eventually(lambda: set(kubelet.watched[SHARED].devices.values()) == {"Unhealthy"})
    assert set(kubelet.watched[WHOLE].devices.values()) == {"Healthy"}


def test_a_kubelet_that_is_started_anew_is_registered_with_again(node: KubernetesNode, kubelet: DeviceManager) -> None:
    kubelet.devices(SHARED)
    kubelet.stop()
    kubelet.start()
    eventually(lambda: kubelet.plugins.keys() == {SHARED, WHOLE})
    assert kubelet.devices(SHARED) == dict.fromkeys(slots(node), "Healthy")


def test_slots_of_one_container_are_preferred_on_one_gpu(make_kubernetes_node: MakeKubernetesNode) -> None:
    node = make_kubernetes_node(options=("--backend", "extended", "--slots-per-gpu", "4"))
    kubelet = DeviceManager(node.kubelet.folder).start()
    try:
        assert len(kubelet.devices(SHARED)) == 8
        free = [*slots(node, 4, 0)[3:], *slots(node, 4, 1)]
        assert set(kubelet.prefer(SHARED, free, 3)) <= set(slots(node, 4, 1))
        assert kubelet.prefer(SHARED, free, 1) == slots(node, 4, 0)[3:]
    finally:
        kubelet.stop()


# ---- what containers get ----


def test_slots_become_a_session_with_their_part_of_the_memory(node: KubernetesNode, kubelet: DeviceManager) -> None:
    kubelet.devices(SHARED)
    vendor, ours = kubelet.allocate(SHARED, slots(node, 3))
    assert vendor == f"nvidia.com/gpu={node.gpus[0]}"
    assert re.fullmatch(r"gpu\.gpuslice\.io/claim=slots-[0-9a-f]{16}-gpu", ours)
    (session,) = node.sessions()
    assert [(gpu.uuid, gpu.limit_bytes) for gpu in session.gpus] == [(node.gpus[0], 12 * GIB)]
    assert node.edits(ours)["mounts"]


def test_a_whole_gpu_is_all_of_it(node: KubernetesNode, kubelet: DeviceManager) -> None:
    kubelet.devices(WHOLE)
    kubelet.allocate(WHOLE, slots(node, 1, gpu=1))
    (session,) = node.sessions()
    assert [(gpu.uuid, gpu.limit_bytes) for gpu in session.gpus] == [(node.gpus[1], 40 * GIB)]


def test_a_container_with_slots_is_limited(node: KubernetesNode, kubelet: DeviceManager, build: Build) -> None:
    kubelet.devices(SHARED)
    container = Container([node.edits(device) for device in kubelet.allocate(SHARED, slots(node, 1))])
    try:
        tenant = container.tenant(build("tenant.c", "-ldl"))
        assert tenant.info()[1] == 4 * GIB
        assert tenant.take("linear", 4 * GIB + 1) == 2
    finally:
        container.close()


def test_slots_on_several_gpus_are_refused_where_one_would_do(make_kubernetes_node: MakeKubernetesNode) -> None:
    node = make_kubernetes_node(options=("--backend", "extended"))
    kubelet = DeviceManager(node.kubelet.folder).start()
    try:
        kubelet.devices(SHARED)
        with pytest.raises(grpc.RpcError, match="no GPU of the node has 4 slots left"):
            kubelet.allocate(SHARED, [*slots(node, 2, 0), *slots(node, 2, 1)])
        assert node.leftovers() == []
        # Two whole GPUs, as slots.
        kubelet.allocate(SHARED, [*slots(node, 10, 0), *slots(node, 10, 1)])
        (session,) = node.sessions()
        assert [gpu.limit_bytes for gpu in session.gpus] == [40 * GIB, 40 * GIB]
    finally:
        kubelet.stop()


def test_a_slot_of_no_gpu_is_refused(node: KubernetesNode, kubelet: DeviceManager) -> None:
    kubelet.devices(SHARED)
    with pytest.raises(grpc.RpcError, match="this node has no GPU"):
        kubelet.allocate(SHARED, slots(node, 1, gpu=1))


# ---- whose they are, and until when ----


def test_the_pod_is_learnt_later_and_the_session_goes_with_it(node: KubernetesNode, kubelet: DeviceManager) -> None:
    kubelet.devices(SHARED)
    kubelet.allocate(SHARED, slots(node, 2))
    kubelet.pods["team", "trainer-0", "main"] = {SHARED: slots(node, 2), "cpu.example.com/core": ["7"]}

    def pod() -> tuple[str, ...]:
        (session,) = node.sessions()
        assert session.workload is not None
        return session.workload.namespace, session.workload.pod, session.workload.container

    eventually(lambda: pod() == ("team", "trainer-0", "main"))
    kubelet.pods.clear()
    eventually(lambda: node.leftovers() == [])


def test_the_next_container_with_the_same_slots_has_a_session_of_its_own(
    node: KubernetesNode, kubelet: DeviceManager
) -> None:
    kubelet.devices(SHARED)
    first = kubelet.allocate(SHARED, slots(node, 1))
    (before,) = node.sessions()
    # The kubelet remembers what it was told, so the name stays; what is behind it does not.
    assert kubelet.allocate(SHARED, slots(node, 1)) == first
    (after,) = node.sessions()
    assert after.token != before.token


def test_after_a_reboot_the_kubelets_pods_have_their_sessions_again(
    node: KubernetesNode, kubelet: DeviceManager
) -> None:
    kubelet.devices(SHARED)
    devices = kubelet.allocate(SHARED, slots(node, 2))
    kubelet.pods["team", "trainer-0", "main"] = {SHARED: slots(node, 2)}
    node.agent.stop()
    for path in (*(node.agent.state / "prepared").iterdir(), *node.cdi_folder.glob("*.json")):
        path.unlink()
    node.agent.start()
    eventually(lambda: len(node.sessions()) == 1)
    assert node.edits(devices[1])["mounts"]


def test_a_restart_of_the_agent_changes_nothing(node: KubernetesNode, kubelet: DeviceManager) -> None:
    kubelet.devices(SHARED)
    kubelet.allocate(SHARED, slots(node, 2))
    (before,) = node.sessions()
    node.agent.kill()
    node.agent.start()
    (after,) = node.sessions()
    assert (after.id, after.token) == (before.id, before.token)
    eventually(lambda: len(kubelet.watched[SHARED].devices) == 10)


# ---- one backend at a time ----


def restart(node: KubernetesNode, *options: str) -> None:
    node.agent.stop()
    node.agent.options += options
    node.agent.start()


def waits_for(node: KubernetesNode, pod: str) -> None:
    said = f'"pods":"{pod}"'
    eventually(
        lambda: "nothing is offered until" in (log := node.agent.log.read_text()) and said in log, f"it names {pod}"
    )


def test_pods_with_slots_are_served_until_they_end_and_only_then_are_claims(
    node: KubernetesNode, kubelet: DeviceManager
) -> None:
    kubelet.devices(SHARED)
    kubelet.allocate(SHARED, slots(node, 2))
    kubelet.pods["team", "trainer-0", "main"] = {SHARED: slots(node, 2)}
    eventually(lambda: all(session.workload and session.workload.pod for session in node.sessions()))
    restart(node, "--backend", "dra")
    waits_for(node, "team/trainer-0")
    assert len(node.sessions()) == 1
    assert not node.kubelet.registration_socket.exists()

    kubelet.pods.clear()
    eventually(node.kubelet.registration_socket.exists, "claims are served")
    assert node.leftovers() == []
    node.kubelet.prepared(node.claim("first", Share(node.device(), memory="1Gi")))


def test_pods_with_claims_can_end_before_slots_are_offered(make_kubernetes_node: MakeKubernetesNode) -> None:
    node = make_kubernetes_node()
    claim = node.claim("held", Share(node.device(), memory="1Gi"))
    node.kubelet.prepared(claim)
    kubelet = DeviceManager(node.kubelet.folder).start()
    try:
        restart(node, "--backend", "extended")
        waits_for(node, "team/trainer-0")
        assert not kubelet.watched

        assert node.kubelet.unprepare(claim) == {claim.uid: ""}
        assert len(kubelet.devices(SHARED)) == 20
        assert node.leftovers() == []
        assert not node.kubelet.registration_socket.exists()
    finally:
        kubelet.stop()


@pytest.mark.parametrize("change", [("--slots-per-gpu", "4"), ("--shared-resource", "example.com/slot")])
def test_slots_of_another_size_or_name_are_offered_when_the_old_ones_are_free(
    node: KubernetesNode, kubelet: DeviceManager, change: tuple[str, str]
) -> None:
    """Or a GPU would be promised twice: the kubelet counts each kind for itself."""
    kubelet.devices(SHARED)
    kubelet.allocate(SHARED, slots(node, 10))
    kubelet.pods["team", "trainer-0", "main"] = {SHARED: slots(node, 10)}
    eventually(lambda: all(session.workload and session.workload.pod for session in node.sessions()))
    kubelet.watched.clear()
    restart(node, *change)
    waits_for(node, "team/trainer-0")
    assert not kubelet.watched

    kubelet.pods.clear()
    resource = change[1] if "resource" in change[0] else SHARED
    assert len(kubelet.devices(resource)) == (4 if resource == SHARED else 10)
