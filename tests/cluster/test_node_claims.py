"""The node agent and claims of a real API server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.node.conftest import folder
from tests.node.kubelet import NODE, Kubelet, Share, TestClaim
from tests.node.support import AgentProcess
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuslice_cluster.clusters import Cluster
    from tests.support import Simulated

__all__ = ["folder"]  # a fixture of tests/node


@pytest.fixture
def agent(simulated: Simulated, gpuslice_command: Path, folder: Path, cluster: Cluster) -> Iterator[AgentProcess]:
    options = ["--kubernetes", "--node-name", NODE, "--kubeconfig", str(cluster.kubeconfig)]
    options += ["--kubelet-dir", str(folder / "kubelet"), "--cdi-dir", str(folder / "cdi")]
    process = AgentProcess(
        gpuslice_command, folder / "state", environment=simulated("1xA100-40GB").environment(), options=options
    )
    yield process.start()
    process.stop()


class Claimed:
    """A claim in the API server, allocated as the scheduler would."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, *shares: Share) -> None:
        self._cluster, self._namespace, self._name = cluster, namespace, name
        requests = [{"name": share.request, "exactly": {"deviceClassName": "gpu.gpuslice.io"}} for share in shares]
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"devices": {"requests": requests}},
        }
        self._kubectl("create", "-f", "-", input=json.dumps(document))
        allocation = {"devices": {"results": [share.result() for share in shares]}}
        self._kubectl(
            "patch", "resourceclaim", name, "--subresource=status", "--type=merge",
            "--patch", json.dumps({"status": {"allocation": allocation}}),
        )  # fmt: skip
        self.shares = shares

    def _kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - as kubectl's own
        return self._cluster.kubectl("--namespace", self._namespace, *arguments, input=input)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._kubectl("get", "resourceclaim", self._name, "-o", "json"))
        return found

    def message(self) -> TestClaim:
        metadata = self.document()["metadata"]
        return TestClaim(self._name, metadata["uid"], self.shares, namespace=self._namespace)

    def delete(self) -> None:
        self._kubectl("delete", "resourceclaim", self._name)


def test_a_claim_is_prepared_and_its_status_tells_so(
    agent: AgentProcess, folder: Path, cluster: Cluster, namespace: str
) -> None:
    kubelet, (gpu,) = Kubelet(folder / "kubelet"), agent.client().status().gpus
    device = f"gpu-{gpu.uuid.removeprefix('GPU-')[:8]}"
    claimed = Claimed(cluster, namespace, "real", Share(device, memory="4Gi", cores=25))
    claim = claimed.message()
    (prepared,) = kubelet.prepared(claim)
    assert prepared.device_name == device
    (session,) = agent.client().list()
    assert [(each.limit_bytes, each.core_percent) for each in session.gpus] == [(4 << 30, 25)]
    eventually(lambda: claimed.document()["status"].get("devices"))
    (status,) = claimed.document()["status"]["devices"]
    assert (status["device"], status["data"]["uuid"], status["data"]["session"]) == (device, gpu.uuid, session.id)
    assert status["conditions"][0]["type"] == "Ready"
    # The claim is deleted while the agent is away, and the kubelet has forgotten it.
    agent.kill()
    claimed.delete()
    agent.start()
    eventually(lambda: agent.client().list() == [])
    assert kubelet.unprepare(claim) == {claim.uid: ""}
