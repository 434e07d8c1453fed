"""No more of a GPU is promised to sessions than it has, whoever asks, in whatever order, and after a restart."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.node import Node


def create(node: Node, limit: str, *options: str, code: int = 0) -> str:
    done = node.gpuslice("session", "create", "--limit", limit, "--gpu", "0", *options, code=code)
    return done.stderr if code else done.stdout.strip()


def test_the_sum_of_limits_is_held_to_the_gpu(node: Node) -> None:
    create(node, "30GiB", "--name", "train")
    refusal = create(node, "30GiB", code=1)
    assert refusal == (
        "error: --limit: GPU 0 has 40 GiB, and 30 GiB are promised to train (30 GiB): 10 GiB are left, not 30 GiB: "
        "give at most 10GiB, release a session, or say --overcommit\n"
    )
    assert "10 GiB are left" in node.gpuslice("run", "--limit", "50%", "--gpu", "0", "--", "true", code=1).stderr
    assert create(node, "25%", "--name", "rest") == "rest"
    assert "0 B are left, not 1 MiB: release a session" in create(node, "1MiB", code=1)
    node.gpuslice("session", "create", "--limit", "40GiB", "--gpu", "1")  # all of the other one
    assert node.gpuslice("session", "create", "--limit", "1GiB", code=1).stdout == "", "on all GPUs"
    assert create(node, "40GiB", "--overcommit", "--name", "greedy") == "greedy"
    node.gpuslice("session", "release", "greedy")
    node.gpuslice("session", "release", "train")
    assert create(node, "30GiB") != ""


def test_a_limit_is_raised_no_further_than_there_is_room(node: Node) -> None:
    create(node, "20GiB", "--name", "one")
    create(node, "10GiB", "--name", "two")
    refusal = node.gpuslice("session", "limit", "two", "21GiB", code=1).stderr
    assert "SIZE: GPU 0 has 40 GiB, and 20 GiB are promised to one (20 GiB): 20 GiB are left, not 21 GiB" in refusal
    node.gpuslice("session", "limit", "two", "20GiB")
    node.gpuslice("session", "limit", "two", "30GiB", "--overcommit")
    node.gpuslice("session", "limit", "two", "25GiB")  # less than before is never refused
    node.gpuslice("session", "limit", "one", "5GiB")
    node.gpuslice("session", "limit", "two", "35GiB")


def test_of_many_that_ask_at_once_only_those_get_it_that_fit(node: Node) -> None:
    asked = [node.start("session", "create", "--limit", "15GiB", "--gpu", "0") for _ in range(8)]
    codes = sorted(process.wait(60) for process in asked)
    assert codes == [0, 0, *[1] * 6]
    assert len(node.json("ps")) == 2


def test_promises_are_kept_over_a_restart_of_the_agent(node: Node) -> None:
    assert node.agent is not None
    create(node, "30GiB", "--name", "train")
    node.agent.stop()
    node.start_agent()
    assert "30 GiB are promised to train" in create(node, "11GiB", code=1)


def test_a_partition_has_its_own_memory_and_that_of_its_gpu(node: Node) -> None:
    script = (
        "import pynvml as n; n.nvmlInit(); g = n.nvmlDeviceGetHandleByIndex(0); n.nvmlDeviceSetMigMode(g, 1);"
        "p = n.nvmlDeviceGetGpuInstanceProfileInfo(g, 0); i = n.nvmlDeviceCreateGpuInstance(g, p.id);"
        "c = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(i, 0, 0); n.nvmlGpuInstanceCreateComputeInstance(i, c.id);"
        "print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(g, 0)))"
    )
    python = node.command.with_name("python")
    uuid = subprocess.run(
        [python, "-c", script], check=True, capture_output=True, text=True, env=node.environment()
    ).stdout.strip()
    node.gpuslice("session", "create", "--limit", "3GiB", "--gpu", uuid, "--name", "first")
    refusal = node.gpuslice("session", "create", "--limit", "3GiB", "--gpu", uuid, code=1).stderr
    assert "partition 0:0 has " in refusal
    assert "3 GiB are promised to first (3 GiB)" in refusal
    assert "GPU 0 has 40 GiB, and 3 GiB are promised to first" in create(node, "38GiB", code=1)
    create(node, "37GiB")
    assert (
        "GPU 0 has 40 GiB, and 40 GiB are promised"
        in node.gpuslice("session", "create", "--limit", "1GiB", "--gpu", uuid, code=1).stderr
    )


@pytest.mark.parametrize("way", ["flag", "file"])
def test_a_reserve_is_kept_back(lonely_node: Node, way: str) -> None:
    file = lonely_node.folder / "configuration.yaml"
    file.write_text("apiVersion: config.gpuslice.io/v1alpha1\nkind: Configuration\nagent: {reserve: 512MiB}\n")
    lonely_node.start_agent(options=["--reserve", "512MiB"] if way == "flag" else ["--config", str(file)])
    refusal = create(lonely_node, "100%", code=1)
    assert "GPU 0 has 40 GiB, of which 512 MiB are kept back: 39.5 GiB are left, not 40 GiB: give at most" in refusal
    assert create(lonely_node, "39.5GiB", "--name", "most") == "most"
