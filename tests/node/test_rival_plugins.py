"""Another program that offers the node's GPUs is found and told: they are promised twice."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.kubelet.rival_plugins import rivals
from tests.node.kubelet import NODE
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from tests.node.conftest import MakeKubernetesNode
    from tests.node.kubelet import ClaimServer

SHARED, WHOLE = "nvidia.com/gpu-shared", "nvidia.com/gpu"
METRICS = ("--metrics", "127.0.0.1:0", "--metrics-access", "open")


@pytest.mark.parametrize(
    ("allocatable", "own", "found"),
    [
        ({"cpu": "8", WHOLE: "2"}, set(), {WHOLE: 2}),
        ({"nvidia.com/mig-1g.5gb": "7"}, set(), {"nvidia.com/mig-1g.5gb": 7}),
        ({"nvidia.com/gpu.shared": "20"}, set(), {"nvidia.com/gpu.shared": 20}),
        ({SHARED: "20", WHOLE: "1"}, {SHARED, WHOLE}, {}),
        ({SHARED: "20", WHOLE: "1"}, {SHARED}, {WHOLE: 1}),
        ({WHOLE: "0", SHARED: "0"}, set(), {}),  # what is left of a plugin that is gone
        ({"nvidia.com/hostdev": "4", "example.com/thing": "1"}, set(), {}),
    ],
)  # fmt: skip
def test_gpus_that_are_not_ours_to_offer_are_found(
    allocatable: dict[str, str], own: set[str], found: dict[str, int]
) -> None:
    assert rivals(allocatable, own, ("nvidia.com/hostdev",)) == found


def readiness(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_SECONDS) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


@pytest.mark.parametrize("options", [(), ("--backend", "extended")], ids=["claims", "slots"])
def test_a_device_plugin_beside_the_agent_is_in_log_metrics_and_readiness(
    make_kubernetes_node: MakeKubernetesNode, claim_server: ClaimServer, options: tuple[str, ...]
) -> None:
    claim_server.claims[NODE] = {"status": {"allocatable": {"cpu": "8", WHOLE: "2"}}}
    agent = make_kubernetes_node(options=(*METRICS, *options)).agent
    told = f"the node's GPUs are promised twice: another program offers them as {WHOLE}"

    eventually(lambda: told in agent.log.read_text())
    eventually(lambda: f"other plugins: {told}" in readiness(agent.metrics_port))
    assert agent.metrics()[f'gpuslice_rival_devices{{resource="{WHOLE}"}}'] == 2


def test_slots_of_the_agent_s_own_are_nothing_to_tell(
    make_kubernetes_node: MakeKubernetesNode, claim_server: ClaimServer
) -> None:
    claim_server.claims[NODE] = {"status": {"allocatable": {SHARED: "10", WHOLE: "1"}}}
    own = ("--backend", "extended", "--gpu-policy", "1=whole")
    agent = make_kubernetes_node(options=(*METRICS, *own)).agent

    eventually(lambda: readiness(agent.metrics_port) == "ok\n", seen=lambda: readiness(agent.metrics_port))
    assert "promised twice" not in agent.log.read_text()
