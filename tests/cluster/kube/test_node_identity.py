"""An agent writes the ResourceSlices of its own node, and the API server refuses it all others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from gpuslice.installing import parts
from gpuslice.installing.options import AGENT, NAMESPACE, Options
from gpuslice.kube.client import credentials
from gpuslice.kube.client.api import Api
from gpuslice.kube.errors import ApiError
from gpuslice.kube.resources import RESOURCE_SLICES
from gpuslice.node.dra import support
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gpuslice_cluster.clusters import Cluster

ACCOUNT = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
POLICY = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def resource_slice(name: str, node: str, driver: str = "gpu.gpuslice.io") -> dict[str, Any]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]},
    }


def apply(cluster: Cluster, kinds: set[str]) -> None:
    objects = [each for each in parts.objects(Options(), ["agent"]) if each["kind"] in kinds]
    cluster.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


@pytest.fixture(scope="module")
def installed(quiet_cluster: Cluster) -> Cluster:
    """The agent's account with its rights, and an agent's pod on one of two nodes."""
    quiet_cluster.kubectl("create", "namespace", NAMESPACE)
    apply(quiet_cluster, ACCOUNT)
    for node in ("mine", "theirs"):
        quiet_cluster.kubectl("create", "-f", "-", input=f"apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n")
    container = {"name": "agent", "image": "none"}
    spec = {"serviceAccountName": AGENT, "nodeName": "mine", "containers": [container]}
    metadata = {"name": "agent", "namespace": NAMESPACE}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    quiet_cluster.kubectl("create", "-f", "-", input=json.dumps(document))
    return quiet_cluster


def with_token(cluster: Cluster, folder: Path, *bound: str) -> Api:
    token = cluster.kubectl("create", "token", AGENT, f"--namespace={NAMESPACE}", *bound).strip()
    document = json.loads(cluster.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    (folder / "agent.kubeconfig").write_text(json.dumps(document))
    return Api(credentials.load(folder / "agent.kubeconfig", {}), "tests")


@pytest_asyncio.fixture
async def agent(installed: Cluster, tmp_path: Path) -> AsyncIterator[Api]:
    """With the token that the pod has."""
    async with with_token(installed, tmp_path, "--bound-object-kind=Pod", "--bound-object-name=agent") as api:
        yield api


async def refused(call: Any) -> str:  # noqa: ANN401 - any call
    try:
        await call
    except ApiError as error:
        return str(error)
    return ""


async def test_an_agent_writes_slices_of_its_own_node_alone(
    installed: Cluster, agent: Api, quiet_api: Api, tmp_path: Path
) -> None:
    other = resource_slice("theirs", "theirs")
    await agent.create(RESOURCE_SLICES, other)  # as its rights alone allow
    await agent.delete(RESOURCE_SLICES, "theirs")
    apply(installed, POLICY)

    async def is_in_force() -> bool:
        said = await refused(agent.create(RESOURCE_SLICES, resource_slice("trial", "theirs")))
        if not said:  # by the administrator: the agent may not any more
            await quiet_api.delete(RESOURCE_SLICES, "trial")
        return "an agent on node mine may write ResourceSlices of no other" in said

    await until(is_in_force)
    own = json.loads(await agent.create(RESOURCE_SLICES, resource_slice("mine", "mine")))
    own["spec"]["pool"]["generation"] = 2
    await agent.replace(RESOURCE_SLICES, "mine", own)
    await agent.delete(RESOURCE_SLICES, "mine")
    assert await support.why_no_claims(agent, "mine") == ""

    foreign = resource_slice("foreign", "mine", driver="gpu.nvidia.com")
    assert "of the driver gpu.gpuslice.io alone" in await refused(agent.create(RESOURCE_SLICES, foreign))
    theirs = json.loads(await quiet_api.create(RESOURCE_SLICES, other))
    theirs["spec"]["pool"]["generation"] = 2
    assert "of no other" in await refused(agent.replace(RESOURCE_SLICES, "theirs", theirs))
    assert "of no other" in await refused(agent.delete(RESOURCE_SLICES, "theirs"))
    async with with_token(installed, tmp_path) as outside:
        own = resource_slice("mine", "mine")
        assert "the token names no node" in await refused(outside.create(RESOURCE_SLICES, own))
