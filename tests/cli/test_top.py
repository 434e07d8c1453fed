"""`gpuslice top`: one frame, many frames, and on a terminal."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.node.support import read_line
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.cli.node import Node


def test_a_frame_shows_gpus_sessions_and_processes(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--gpu", "1", "--name", "train")
    assert [allocator.ask(size) for size in ("128", "200")] == ["0", "2"]
    shown = node.gpuslice("top", "--once").stdout
    gpus, sessions, processes = shown.split("\n\n")[1:4]
    assert [" ".join(line.split()[-6:]) for line in gpus.splitlines()[2:]] == [
        "0 B 0 B 40 GiB",
        "128 MiB 256 MiB 40 GiB",
    ]
    (session,) = sessions.splitlines()[2:]
    assert session.startswith("train")
    assert "━━━" in session
    assert "128 MiB   256 MiB   128 MiB         1          0" in session
    (process,) = processes.splitlines()[2:]
    assert process.startswith(str(allocator.pid))
    assert "allocator.py" in process


def test_as_json_each_look_is_a_line(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--gpu", "1", "--name", "train")
    assert allocator.ask("128") == "0"
    look = node.json("top", "--once")
    assert look["agent"]["pid"] == node.agent_pid
    assert [gpu["memory_bytes"] for gpu in look["agent"]["gpus"]] == [40 * 2**30] * 2
    assert look["sessions"] == node.json("ps")
    process = node.start("top", "--interval", "100ms", "-o", "json")
    times = [json.loads(read_line(process))["time"] for _ in range(3)]
    assert times == sorted(times)


def test_without_sessions_it_says_how_to_start_one(node: Node) -> None:
    assert "No session: start one with `gpuslice run" in node.gpuslice("top", "--once").stdout


def test_into_a_pipe_it_prints_frame_after_frame_until_it_is_interrupted(node: Node) -> None:
    process = node.start("top", "--interval", "100ms")
    frames = 0
    while frames < 3:
        frames += read_line(process).startswith("gpuslice top")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_on_a_terminal_q_and_control_c_leave(node: Node, key: bytes) -> None:
    terminal = node.on_terminal("top", "--interval", "200ms")
    terminal.expect(b"gpuslice top", times=2)
    terminal.type(key)
    assert terminal.end() == 0
    assert b"\x1b[?1049l" in terminal.shown, "the screen is given back"
    assert b"Traceback" not in terminal.shown


def test_it_waits_for_an_agent_that_is_started_again(node: Node) -> None:
    assert node.agent is not None
    process = node.start("top", "--interval", "100ms", "-o", "json")
    assert json.loads(read_line(process))["agent"]["pid"] == node.agent_pid
    terminal = node.on_terminal("top", "--interval", "100ms")
    terminal.expect(b"sessions: 0")
    node.agent.stop()
    terminal.expect(b"waiting for it")
    node.start_agent()
    while json.loads(read_line(process))["agent"]["pid"] != node.agent_pid:
        pass
    terminal.expect(f"agent {node.agent_pid}".encode())
    terminal.type(b"q")
    assert terminal.end() == 0
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors.count("\n")) == (0, 1)
    assert errors.startswith("warning: no agent answers at ")
    assert errors.endswith("; waiting for it\n")


def test_a_terminal_that_cannot_be_drawn_on_gets_frame_after_frame(node: Node) -> None:
    terminal = node.on_terminal("top", "--interval", "100ms", extra={"TERM": "dumb"})
    terminal.expect(b"gpuslice top", times=2)
    terminal.type(b"\x03")
    assert terminal.end() == 0
    assert b"\x1b" not in terminal.shown


def test_what_has_no_room_on_the_screen_is_counted(node: Node) -> None:
    for number in range(6):
        node.gpuslice("session", "create", "--limit", "1GiB", "--gpu", "1", "--name", f"session-{number}")
    terminal = node.on_terminal("top", extra={"LINES": "14"})
    terminal.expect(b"session-0")
    terminal.expect(b"more sessions: see `gpuslice ps -o wide`")
    terminal.type(b"q")
    assert terminal.end() == 0
    assert b"... and 2 more sessions" in terminal.shown
    assert b"session-3" in terminal.shown
    assert b"session-4" not in terminal.shown


def test_a_gpu_that_fell_off_the_bus_is_shown(node: Node) -> None:
    node.gpuslice("session", "create", "--limit", "1GiB", "--name", "train")
    node.gpuslice("sim", "inject", "--gpu", "0", "--xid", "79")
    eventually(lambda: node.json("top", "--once")["agent"]["gpus"][-1]["lost"], "the agent has noticed")
    gpus = node.gpuslice("top", "--once").stdout.split("\n\n")[1].splitlines()[2:]
    assert [line.split()[0] for line in gpus] == ["1", "0"]
    assert gpus[1].rstrip().endswith("fell off the bus")
    assert node.gpuslice("session", "create", "--limit", "1GiB", "--gpu", "1", "--name", "other").stdout == "other\n"


def test_a_signal_gives_the_terminal_back(node: Node) -> None:
    terminal = node.on_terminal("top")
    terminal.expect(b"gpuslice top")
    terminal.send(signal.SIGTERM)
    assert terminal.end() == 128 + signal.SIGTERM
    assert b"\x1b[?1049l" in terminal.shown
    assert b"Traceback" not in terminal.shown


def test_without_an_agent_it_says_how_to_start_one(lonely_node: Node) -> None:
    done = lonely_node.gpuslice("top", "--once", code=1)
    assert done.stderr == (
        f"error: no agent is running at {lonely_node.state}/admin.sock: start one with `gpuslice agent`\n"
    )


def test_the_help_has_an_example(node: Node) -> None:
    assert "Example:\n    gpuslice top\n" in node.gpuslice("top", "--help").stdout
