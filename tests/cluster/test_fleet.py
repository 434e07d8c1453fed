"""A GPU of a simulated machine fails: the cluster hears of it, and when it is well again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.gpu_nodes import GpuNode, gpu_node
from tests.native.inside import python_path
from tests.waiting import eventually

if TYPE_CHECKING:
    from gpuslice_cluster.clusters import Cluster
    from tests.support import Simulated

PROCESS = Path(__file__).with_name("fleet_process.py")


def taints(node: GpuNode) -> dict[int, list[tuple[str, str, str]]]:
    """By index of the GPU."""
    return {
        device["attributes"]["index"]["int"]: [
            (taint["key"], taint["value"], taint["effect"]) for taint in device.get("taints", ())
        ]
        for each in node.slices()
        for device in each["spec"].get("devices", ())
    }


def test_an_xid_taints_the_gpu_and_is_told_as_an_event_until_it_is_set_right(
    cluster: Cluster, namespace: str, simulated: Simulated, gpuslice_command: Path, tmp_path: Path
) -> None:
    machine = simulated("2xT4")
    with gpu_node(cluster, namespace) as node:
        arguments: list[str | Path] = [sys.executable, PROCESS, cluster.kubeconfig, node.name, tmp_path]
        process = machine.start(arguments, **python_path())
        try:
            eventually(lambda: taints(node) == {0: [], 1: []}, "the GPUs are published")
            machine.run([gpuslice_command, "sim", "inject", "--gpu", "1", "--xid", "31"])  # a program's own fault
            machine.run([gpuslice_command, "sim", "inject", "--gpu", "1", "--xid", "48"])
            ill = [("gpuslice.io/unhealthy", "xid-48", "NoSchedule")]
            eventually(lambda: taints(node) == {0: [], 1: ill}, "the GPU is tainted")
            eventually(lambda: "reported XID 48" in cluster.kubectl("describe", "node", node.name), "the event is told")
            (record,) = (tmp_path / "health").iterdir()
            record.unlink()
            eventually(lambda: taints(node) == {0: [], 1: []}, "the GPU is as before")
        finally:
            process.communicate()
        assert process.returncode == 0
        assert len(node.slices()) == 1, "a restart of the agent must not take the devices of running pods away"
