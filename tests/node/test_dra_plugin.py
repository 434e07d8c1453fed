"""Claims are prepared and unprepared as the kubelet asks for it."""

from __future__ import annotations

import stat
import threading
from typing import TYPE_CHECKING

from gpuslice.node.claims import cdi
from gpuslice.node.kubelet.generated import dra_health_pb2
from tests.node.kubelet import Share
from tests.node.kubernetes_node import GIB
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.node.conftest import MakeKubernetesNode
    from tests.node.kubelet import TestClaim
    from tests.node.kubernetes_node import KubernetesNode


# ---- the sockets ----


def test_the_plugin_registers_with_what_is_served_already(node: KubernetesNode) -> None:
    information = node.kubelet.information()
    assert (information.type, information.name) == ("DRAPlugin", "gpu.gpuslice.io")
    assert information.endpoint == str(node.kubelet.endpoint)
    assert "v1.DRAPlugin" in information.supported_versions
    node.kubelet.tell_registered()
    node.kubelet.tell_registered(error="another plugin has this name")
    eventually(lambda: "another plugin has this name" in node.agent.log.read_text())


def test_only_root_reaches_the_sockets(node: KubernetesNode) -> None:
    for socket in (node.kubelet.endpoint, node.kubelet.registration_socket):
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600


def test_the_sockets_go_with_the_agent_and_come_back_after_a_crash(node: KubernetesNode) -> None:
    node.agent.kill()
    node.agent.start()
    assert node.kubelet.information().name == "gpu.gpuslice.io"
    node.agent.stop()
    assert not node.kubelet.endpoint.exists()
    assert not node.kubelet.registration_socket.exists()


def test_the_kubelet_learns_of_a_gpu_that_fails(node: KubernetesNode) -> None:
    assert "v1alpha1.DRAResourceHealth" in node.kubelet.information().supported_versions
    with node.kubelet.health() as updates:
        first = next(updates)
        assert set(first.values()) == {dra_health_pb2.HEALTHY}
        assert {node.device(0), node.device(1), f"{node.device(1)}-mig-1g-5gb-0"} <= first.keys()
        folder = node.agent.state / "health"
        folder.mkdir(exist_ok=True)
        (folder / node.gpus[0]).write_text('{"xid": 48}')
        later = next(update for update in updates if dra_health_pb2.UNHEALTHY in update.values())
    assert (later[node.device(0)], later[node.device(1)]) == (dra_health_pb2.UNHEALTHY, dra_health_pb2.HEALTHY)


# ---- prepare ----


def test_a_share_becomes_a_session_with_its_limit(node: KubernetesNode) -> None:
    claim = node.claim("small", Share(node.device(1), memory="4Gi", cores=30, share_id="share-1"))
    (device,) = node.kubelet.prepared(claim)
    assert (*device.request_names, device.pool_name, device.device_name, device.share_id) == (
        "gpu", "node-1/gpuslice", node.device(1), "share-1",
    )  # fmt: skip
    assert device.cdi_device_ids == [f"nvidia.com/gpu={node.gpus[1]}", f"gpu.gpuslice.io/claim={claim.uid}-gpu"]
    (session,) = node.sessions(claim)
    assert [(gpu.uuid, gpu.limit_bytes, gpu.core_percent) for gpu in session.gpus] == [(node.gpus[1], 4 * GIB, 30)]
    assert session.workload is not None
    assert (session.workload.namespace, session.workload.pod, session.workload.claim) == ("team", "trainer-0", "small")
    assert session.expires_in is None
    assert session.owner.pid is None


def test_a_claim_that_names_no_amount_has_all_of_the_gpu(node: KubernetesNode) -> None:
    claim = node.claim("whole", Share(node.device()))
    node.kubelet.prepared(claim)
    (session,) = node.sessions(claim)
    assert session.gpus[0].limit_bytes == 40 * GIB


def test_two_gpus_of_one_request_are_one_session(node: KubernetesNode) -> None:
    claim = node.claim("two", Share(node.device(0), memory="1Gi"), Share(node.device(1), memory="2Gi"))
    devices = node.kubelet.prepared(claim)
    (session,) = node.sessions(claim)
    assert [gpu.limit_bytes for gpu in session.gpus] == [GIB, 2 * GIB]
    assert {device.cdi_device_ids[1] for device in devices} == {f"gpu.gpuslice.io/claim={claim.uid}-gpu"}


def test_two_shares_of_one_gpu_add_up(node: KubernetesNode) -> None:
    shares = [Share(node.device(), memory="1Gi", cores=60, share_id=f"share-{n}") for n in range(2)]
    claim = node.claim("twice", *shares)
    node.kubelet.prepared(claim)
    (session,) = node.sessions(claim)
    assert [(gpu.limit_bytes, gpu.core_percent) for gpu in session.gpus] == [(2 * GIB, 100)]


def test_each_request_has_a_session_because_containers_may_use_one_of_them(node: KubernetesNode) -> None:
    claim = node.claim(
        "requests",
        Share(node.device(), memory="1Gi", request="left"),
        Share(node.device(), memory="2Gi", request="right/of-40gi"),
    )
    devices = node.kubelet.prepared(claim)
    assert [list(device.request_names) for device in devices] == [["left"], ["right"]]
    assert sorted(session.gpus[0].limit_bytes for session in node.sessions(claim)) == [GIB, 2 * GIB]
    (left, right) = (node.edits(device.cdi_device_ids[1]) for device in devices)
    assert left != right


def test_admin_access_gets_the_gpu_and_no_session(node: KubernetesNode) -> None:
    claim = node.claim("monitor", Share(node.device(), admin=True))
    (device,) = node.kubelet.prepared(claim)
    assert device.cdi_device_ids == [f"nvidia.com/gpu={node.gpus[0]}"]
    assert node.sessions(claim) == []
    assert node.kubelet.unprepare(claim) == {claim.uid: ""}
    assert node.leftovers() == []


def test_devices_of_other_drivers_and_pools_are_left_to_them(node: KubernetesNode) -> None:
    claim = node.claim(
        "mixed",
        Share("nic-0", driver="net.example.com"),
        Share(node.device(), memory="1Gi"),
        Share("gpu-0", pool="node-2/gpuslice"),
    )
    assert [device.device_name for device in node.kubelet.prepared(claim)] == [node.device()]


def test_a_mig_partition_is_made_and_destroyed_with_its_claim(node: KubernetesNode) -> None:
    claim = node.claim("mig", Share(f"{node.device(1)}-mig-3g-20gb-4"))
    (device,) = node.kubelet.prepared(claim)
    (session,) = node.sessions(claim)
    uuid = session.gpus[0].uuid
    assert uuid.startswith("MIG-")
    assert device.cdi_device_ids[0] == f"nvidia.com/gpu={uuid}"
    assert session.gpus[0].limit_bytes == 19968 << 20
    assert node.kubelet.unprepare(claim) == {claim.uid: ""}
    assert node.leftovers() == []
    # The GPU can be shared again.
    node.kubelet.prepared(node.claim("shared", Share(node.device(1), memory="1Gi")))


# ---- the container's view ----


def test_everything_a_container_gets_is_read_only(node: KubernetesNode) -> None:
    claim = node.claim("edits", Share(node.device(), memory="1Gi"))
    (device,) = node.kubelet.prepared(claim)
    edits = node.edits(device.cdi_device_ids[1])
    assert {mount["containerPath"] for mount in edits["mounts"]} == {
        "/usr/lib/gpuslice-container",
        "/etc/ld.so.preload",
        "/etc/gpuslice/agent",
        f"/etc/gpuslice/sessions/{claim.uid}-gpu",
    }
    assert all("ro" in mount["options"] for mount in edits["mounts"])
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits["env"]


def test_a_container_sees_the_attach_socket_and_nothing_else_of_the_agent(node: KubernetesNode) -> None:
    claim = node.claim("socket", Share(node.device(), memory="1Gi"))
    (device,) = node.kubelet.prepared(claim)
    (mounted,) = (
        mount for mount in node.edits(device.cdi_device_ids[1])["mounts"] if mount["containerPath"] == cdi.AGENT
    )
    assert [path.name for path in (node.agent.state / "tenants").iterdir()] == ["agent.sock"]
    assert mounted["hostPath"] == str(node.agent.state / "tenants")


def test_the_libraries_of_running_containers_stay_when_the_agent_is_replaced(node: KubernetesNode) -> None:
    claim = node.claim("old", Share(node.device(), memory="1Gi"))
    node.kubelet.prepared(claim)
    place = node.kubelet.endpoint.parent / "lib"
    (current,) = place.iterdir()
    # An earlier version, which a claim has, and an even earlier one that none has.
    node.agent.stop()
    for name in ("0123456789abcdef", "fedcba9876543210"):
        (place / name).mkdir()
    spec = node.cdi_folder / f"gpu.gpuslice.io-{claim.uid}.json"
    spec.write_text(spec.read_text().replace(current.name, "0123456789abcdef"))
    assert claim.uid in node.checkpoint()
    node.agent.start()
    assert "fedcba9876543210" not in {path.name for path in place.iterdir()}


# ---- asking again, and side by side ----


def test_asked_again_it_answers_the_same_and_makes_nothing_new(node: KubernetesNode) -> None:
    claim = node.claim("again", Share(node.device(), memory="1Gi"))
    first = node.kubelet.prepared(claim)
    before = node.leftovers()
    node.api.claims.clear()  # it does not even ask
    assert node.kubelet.prepared(claim) == first
    assert node.leftovers() == before


def test_what_a_user_removed_is_there_again_when_asked_again(node: KubernetesNode) -> None:
    claim = node.claim("repair", Share(node.device(), memory="1Gi"))
    first = node.kubelet.prepared(claim)
    (session,) = node.sessions(claim)
    (node.cdi_folder / f"gpu.gpuslice.io-{claim.uid}.json").unlink()
    node.agent.client().release(session.id)
    assert node.kubelet.prepared(claim) == first
    (again,) = node.sessions(claim)
    assert (again.id, again.token, again.gpus[0].limit_bytes) == (session.id, session.token, GIB)
    assert node.edits(first[0].cdi_device_ids[1])


def test_claims_of_one_call_fail_each_for_itself(node: KubernetesNode) -> None:
    good = node.claim("good", Share(node.device(), memory="1Gi"))
    unknown = node.claim("unknown", Share("gpu-99999999", memory="1Gi"))
    missing = node.claim("missing", Share(node.device(), memory="1Gi"))
    del node.api.claims["missing"]
    answers = node.kubelet.prepare(good, unknown, missing)
    assert not answers[good.uid].error
    assert "no device gpu-99999999" in answers[unknown.uid].error
    assert "no claim team/missing" in answers[missing.uid].error
    assert {session.workload.claim for session in node.sessions() if session.workload} == {"good"}
    assert node.checkpoint().keys() == {good.uid}


def test_a_claim_by_the_name_of_another_is_not_prepared(node: KubernetesNode) -> None:
    old = node.claim("name", Share(node.device(), memory="1Gi"), uid="aaaaaaaa-0000")
    node.claim("name", Share(node.device(), memory="8Gi"), uid="bbbbbbbb-0000")
    assert "bbbbbbbb-0000" in node.kubelet.prepare(old)[old.uid].error
    assert node.leftovers() == []


def test_a_uid_that_is_a_path_is_refused(node: KubernetesNode) -> None:
    claim = node.claim("path", Share(node.device(), memory="1Gi"), uid="../../etc")
    assert "cannot be a claim's UID" in node.kubelet.prepare(claim)[claim.uid].error
    assert "cannot be a claim's UID" in node.kubelet.unprepare(claim)[claim.uid]


def test_different_claims_do_not_wait_for_each_other(node: KubernetesNode) -> None:
    claims = [node.claim(f"claim-{number}", Share(node.device(), memory="1Gi")) for number in range(4)]
    node.api.gate.clear()
    threads = [threading.Thread(target=node.kubelet.prepare, args=[claim]) for claim in claims]
    for thread in threads:
        thread.start()
    eventually(lambda: node.api.reads == len(claims), "all claims are read at once")
    node.api.gate.set()
    for thread in threads:
        thread.join()
    assert len(node.sessions()) == len(claims)


def test_the_same_claim_twice_at_once_is_prepared_once(node: KubernetesNode) -> None:
    claim = node.claim("twin", Share(node.device(), memory="1Gi"))
    node.api.gate.clear()
    answers: list[list[object]] = []
    threads = [threading.Thread(target=lambda: answers.append(list(node.kubelet.prepared(claim)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: node.api.reads == 1)
    node.api.gate.set()
    for thread in threads:
        thread.join()
    assert node.api.reads == 1
    assert answers[0] == answers[1] == answers[2]
    assert len(node.sessions(claim)) == 1


# ---- unprepare ----


def test_unprepare_leaves_nothing(node: KubernetesNode) -> None:
    claims = [node.claim(f"claim-{number}", Share(node.device(), memory="1Gi")) for number in range(3)]
    node.kubelet.prepare(*claims)
    node.api.claims.clear()  # the claims are often gone by then
    assert node.kubelet.unprepare(*claims) == {claim.uid: "" for claim in claims}
    assert node.leftovers() == []


def test_unprepare_of_an_unknown_claim_is_no_error(node: KubernetesNode) -> None:
    claim = node.claim("never", Share(node.device(), memory="1Gi"))
    assert node.kubelet.unprepare(claim) == {claim.uid: ""}


def test_unprepare_removes_what_an_agent_that_lost_its_checkpoint_left(node: KubernetesNode) -> None:
    claim = node.claim("lost", Share(node.device(), memory="1Gi"))
    node.kubelet.prepared(claim)
    node.agent.kill()
    (node.agent.state / "prepared" / f"{claim.uid}.json").unlink()
    stray = node.cdi_folder / f"gpu.gpuslice.io-{claim.uid}.json"
    content = stray.read_text()
    node.agent.start()
    stray.write_text(content)
    assert node.kubelet.unprepare(claim) == {claim.uid: ""}
    assert node.leftovers() == []


# ---- the claim's status ----


def test_the_claims_status_tells_what_its_devices_are(node: KubernetesNode) -> None:
    claim = node.claim("status", Share(node.device(), memory="1Gi", cores=10, share_id="share-7"))
    node.kubelet.prepared(claim)
    eventually(lambda: "status" in node.api.reported)
    (device,) = node.api.reported["status"]
    (session,) = node.sessions(claim)
    assert (device["driver"], device["pool"], device["device"], device["shareID"]) == (
        "gpu.gpuslice.io", "node-1/gpuslice", node.device(), "share-7",
    )  # fmt: skip
    assert device["data"] == {
        "uuid": node.gpus[0], "model": "NVIDIA A100-SXM4-40GB", "session": session.id,
        "memoryBytes": GIB, "corePercent": 10,
    }  # fmt: skip
    assert device["conditions"][0]["status"] == "True"


# ---- the cluster and the node differ ----


def prepared_and_gone(node: KubernetesNode) -> TestClaim:
    claim = node.claim("gone", Share(node.device(), memory="1Gi"))
    node.kubelet.prepared(claim)
    del node.api.claims["gone"]
    return claim


def test_a_claim_that_the_cluster_forgot_is_undone_at_the_next_start(node: KubernetesNode) -> None:
    prepared_and_gone(node)
    node.agent.kill()
    node.agent.start()
    eventually(lambda: node.leftovers() == [])


def test_nothing_is_undone_while_the_cluster_cannot_be_asked(make_kubernetes_node: MakeKubernetesNode) -> None:
    node = make_kubernetes_node()
    claim = node.claim("kept", Share(node.device(), memory="1Gi"))
    before = node.kubelet.prepared(claim)
    node.api.close()
    node.agent.kill()
    node.agent.start()
    eventually(lambda: "claims are not compared" in node.agent.log.read_text())
    assert node.kubelet.prepared(claim) == before
    assert node.kubelet.unprepare(claim) == {claim.uid: ""}
