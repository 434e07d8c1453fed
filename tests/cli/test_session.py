"""`gpuslice session`: sessions by hand."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.node import ALLOCATOR
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.cli.node import Node

COMMANDS = {
    "create": ["--limit", "1GiB"],
    "show": ["train"],
    "limit": ["train", "1GiB"],
    "release": ["train"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(node: Node, command: str) -> None:
    assert f"Example:\n    gpuslice session {command} " in node.gpuslice("session", command, "--help").stdout


def test_a_session_is_made_shown_changed_and_released(node: Node) -> None:
    assert node.gpuslice("session", "create", "--limit", "1GiB", "--name", "train", "--gpu", "1").stdout == "train\n"
    shown = node.gpuslice("session", "show", "train").stdout
    assert "Session:   train\nName:      train\nState:     active\n" in shown
    assert "1 GiB" in shown
    assert "No process is in it." in shown
    assert "2 GiB" in node.gpuslice("session", "limit", "train", "2GiB").stdout
    assert node.gpuslice("session", "release", "train").stdout == "Session train is released.\n"
    assert "there is no session 'train': see `gpuslice ps`" in node.gpuslice("session", "show", "train", code=1).stderr


def test_every_command_prints_json_and_only_create_the_token(node: Node) -> None:
    made = node.json("session", "create", "--limit", "25%", "--ttl", "1h", "--grace", "5s", "--on-breach", "kill")
    assert [gpu["limit_bytes"] for gpu in made["gpus"]] == [10 * 2**30] * 2
    assert 3500 < made["expires_in"] <= 3600
    assert (made["state"], made["grace_seconds"], made["on_breach"]) == ("active", 5.0, "kill")
    assert len(made["token"]) >= 32
    limited = node.json("session", "limit", made["id"], "1GiB", "--gpu", "1")
    assert [gpu["limit_bytes"] for gpu in limited["gpus"]] == [10 * 2**30, 2**30]
    shown = node.json("session", "show", made["id"])
    released = node.json("session", "release", made["id"])
    assert released["state"] == "released"
    for printed in (limited, shown, released):
        assert printed.keys() == made.keys() - {"token"}
        assert printed["id"] == made["id"]


def test_the_lines_for_a_shell_put_programs_into_the_session(node: Node) -> None:
    lines = node.gpuslice("session", "create", "--limit", "100MiB", "--name", "train", "-o", "env").stdout
    names = [line.split("=")[0] for line in lines.splitlines()]
    assert names == [
        f"export {name}" for name in ("GPUSLICE_SESSION", "GPUSLICE_IPC_SOCK", "GPUSLICE_IPC_TOKEN", "LD_PRELOAD")
    ]
    done = subprocess.run(
        ["sh", "-c", f'{lines}\nexec "$@"', "sh", *ALLOCATOR],
        check=True, capture_output=True, text=True, input="100\n1\n", env=node.environment(),
    )  # fmt: skip
    assert done.stdout.splitlines()[1:] == ["0", "2"]
    assert node.json("session", "show", "train")["denials"] == 1


def test_a_session_in_use_is_released_by_force(node: Node) -> None:
    allocator = node.start_allocator("--limit", "1GiB", "--name", "train")
    assert allocator.ask("100") == "0"
    refusal = node.gpuslice("session", "release", "train", code=1).stderr
    assert f"session train has 1 process(es): {allocator.pid}: end them first, or say --force" in refusal
    node.gpuslice("session", "release", "train", "--force")
    assert allocator.ask("100") == "2"
    code, errors = allocator.end()
    assert code == 0
    assert "the session was released" in errors


def test_a_session_without_a_run_stays_until_it_is_released(node: Node) -> None:
    node.gpuslice("session", "create", "--limit", "1GiB", "--name", "train")
    allocator = node.start_allocator("--limit", "1GiB", "--name", "other")
    assert [session["id"] for session in node.json("ps")] == ["train", "other"]
    os.kill(allocator.pid, signal.SIGKILL)
    assert allocator.end()[0] == 137
    eventually(lambda: [session["id"] for session in node.json("ps")] == ["train"], "the other is released")


@pytest.mark.parametrize("command", COMMANDS)
def test_without_an_agent_it_says_how_to_start_one(lonely_node: Node, command: str) -> None:
    done = lonely_node.gpuslice("session", command, *COMMANDS[command], code=1)
    assert done.stdout == ""
    assert done.stderr == (
        f"error: no agent is running at {lonely_node.state}/admin.sock: start one with `gpuslice agent`\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["create"], 2, "Give --limit"),
        (["create", "--limit", "1GiB", "--gpu", "5"], 1, "--gpu: '5' is not a GPU of this machine: it has 0 ("),
        (["limit", "train"], 2, "Missing argument 'SIZE'"),
        (["limit", "train", "many"], 2, "'many' is not an amount of bytes"),
        (["limit", "train", "1GiB"], 1, "there is no session 'train'"),
        (["limit", "made", "41GiB"], 1, "SIZE: 41GiB is more than the GPU has"),
        (["limit", "made", "1GiB", "--gpu", "7"], 1, "--gpu: session made has no GPU '7'"),
        (["release", "../../etc"], 1, "there is no session '../../etc'"),
    ],
)
def test_an_error_is_one_line_with_the_remedy(node: Node, arguments: list[str], code: int, text: str) -> None:
    node.gpuslice("session", "create", "--limit", "1GiB", "--name", "made")
    done = node.gpuslice("session", *arguments, code=code)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert text in done.stderr
