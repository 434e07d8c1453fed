"""`gpuslice ps`: what is shown of sessions."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.cli.node import Node


def test_the_table_has_a_line_for_each_gpu_of_each_session(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--gpu", "0", "--name", "train", "--ttl", "1h")
    assert [allocator.ask(size) for size in ("100", "100", "100")] == ["0", "0", "2"]
    node.gpuslice("session", "create", "--limit", "25%", "--name", "idle")
    uuids = [gpu["uuid"] for gpu in node.json("sim", "status")["gpus"]]
    heading, _, *lines = node.gpuslice("ps").stdout.splitlines()
    assert " ".join(heading.split()) == (
        "Session State GPU Limit Held Overhead Peak Processes Allocations Denials Breaches Age TTL"
    )
    rows = [line.split() for line in lines]
    assert [row[:4] for row in rows] == [
        ["train", "active", "A100-SXM4-40GB", uuids[0][:12]],
        ["idle", "active", "A100-SXM4-40GB", uuids[0][:12]],
        ["idle", "active", "A100-SXM4-40GB", uuids[1][:12]],
    ]
    assert " ".join(rows[0][4:-2]) == "256 MiB 200 MiB 0 B 200 MiB 1 2 1 0"
    assert rows[0][-1].startswith(("59m", "1h"))
    assert " ".join(rows[1][4:-2]) == "10 GiB 0 B 0 B 0 B 0 0 0 0"
    assert rows[1][-1] == "-"


def test_the_wide_table_names_owners_and_processes(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--gpu", "0", "--name", "train", "--on-breach", "kill")
    (line,) = node.gpuslice("ps", "-o", "wide").stdout.splitlines()[2:]
    assert f"user {os.getuid()}, process {allocator.process.pid}" in line
    assert "kill" in line
    assert f"{allocator.pid} " in line
    assert "allocator.py" in line
    assert node.json("sim", "status")["gpus"][0]["uuid"] in line


def test_a_narrow_screen_gets_the_columns_that_fit(node: Node) -> None:
    node.gpuslice("session", "create", "--limit", "1GiB", "--name", "train", "--gpu", "0")
    lines = node.gpuslice("ps", extra={"COLUMNS": "80"}).stdout.splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split()[:5] == ["Session", "State", "GPU", "Limit", "Held"]


def test_json_has_everything_but_the_token(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--gpu", "0", "--name", "train")
    assert [allocator.ask(size) for size in ("100", "200")] == ["0", "2"]
    (session,) = node.json("ps")
    assert (session["id"], session["name"], session["state"], session["expires_in"]) == (
        "train",
        "train",
        "active",
        None,
    )
    assert session["owner"] == {"uid": os.getuid(), "gid": os.getgid(), "pid": allocator.process.pid}
    assert "token" not in session
    (gpu,) = session["gpus"]
    assert (gpu["limit_bytes"], gpu["held_bytes"], gpu["peak_bytes"]) == (256 * 2**20, 100 * 2**20, 100 * 2**20)
    assert (gpu["allocations"], gpu["denials"], gpu["breaches"]) == (1, 1, 0)
    (process,) = session["processes"]
    assert (process["pid"], process["held_bytes"]) == (allocator.pid, [100 * 2**20])


def test_a_killed_process_gives_its_memory_back(node: Node) -> None:
    node.json("session", "create", "--limit", "1GiB", "--name", "idle")
    allocator = node.start_allocator("--limit", "256MiB", "--gpu", "0", "--name", "train")
    assert allocator.ask("200") == "0"
    os.kill(allocator.pid, signal.SIGKILL)
    assert allocator.end()[0] == 137
    eventually(lambda: [session["id"] for session in node.json("ps")] == ["idle"], "the session is released")
    assert [gpu["used_bytes"] for gpu in node.json("sim", "status")["gpus"]] == [0, 0]


def test_without_sessions_it_says_how_to_start_one(node: Node) -> None:
    assert node.gpuslice("ps").stdout == "No session: start one with `gpuslice run --limit 256MB -- COMMAND`.\n"
    assert node.json("ps") == []


def test_without_an_agent_it_says_how_to_start_one(lonely_node: Node) -> None:
    done = lonely_node.gpuslice("ps", code=1)
    assert done.stderr == (
        f"error: no agent is running at {lonely_node.state}/admin.sock: start one with `gpuslice agent`\n"
    )


def test_the_help_has_an_example(node: Node) -> None:
    assert "Example:\n    gpuslice ps\n" in node.gpuslice("ps", "--help").stdout
