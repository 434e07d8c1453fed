"""`gpuslice run` as a user runs it: the program does not notice, except for what it may not have."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.cli.run import preload
from tests.cli.node import ALLOCATOR
from tests.node.support import read_line
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.cli.node import Node

# Prints each signal that it gets, once it said that it is ready; ends when its input does. It never waits for long:
# Python calls no handler for a signal that came just before a call that waits, until that call returns.
LISTENER = """
import select, signal, sys
def tell(number, frame):
    print(signal.Signals(number).name, flush=True)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), tell)
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    pass
"""


def process_state(pid: int) -> str:
    """R, S, T and so on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def environment_of(text: str) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in text.split("\0") if entry)


# ---- it is as if the program had been called ----


@pytest.mark.parametrize(("script", "code"), [("true", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_the_exit_code_is_the_programs(node: Node, script: str, code: int) -> None:
    node.gpuslice("run", "--limit", "256MB", "--", "sh", "-c", script, code=code)
    assert node.json("ps") == []


def test_input_output_and_arguments_pass_through(node: Node) -> None:
    script = 'cat; echo "$#:$1:$2" >&2'
    done = node.gpuslice("run", "--limit", "1GiB", "--", "sh", "-c", script, "sh", "--help", "a b", stdin="one\ntwo\n")
    assert done.stdout == "one\ntwo\n"
    assert done.stderr == "2:--help:a b\n"


def test_the_double_dash_may_be_left_out(node: Node) -> None:
    assert node.gpuslice("run", "--limit", "1GiB", "echo", "--limit", "x").stdout == "--limit x\n"


def test_the_program_knows_its_session_and_nothing_of_the_agents(lonely_node: Node) -> None:
    token = {"GPUSLICE_IPC_TOKEN": "supersecret"}
    lonely_node.start_agent(token)
    done = lonely_node.gpuslice(
        "run", "--limit", "1GiB", "--name", "train", "--", "env", "-0",
        extra={"LD_PRELOAD": "libdl.so.2 libm.so.6"} | token,
    )  # fmt: skip
    inside = environment_of(done.stdout)
    ours = [str(preload.library_folder() / name) for name in preload.LIBRARIES]
    assert inside["LD_PRELOAD"].split(":") == [*ours, "libdl.so.2", "libm.so.6"]
    assert inside["GPUSLICE_SESSION"] == "train"
    assert inside["GPUSLICE_IPC_SOCK"] == str(lonely_node.state / "agent.sock")
    assert len(inside["GPUSLICE_IPC_TOKEN"]) >= 32
    assert "supersecret" not in done.stdout
    outside = lonely_node.environment()
    changed = {name for name in inside if inside[name] != outside.get(name)}
    assert changed - {"_"} == {"GPUSLICE_SESSION", "GPUSLICE_IPC_SOCK", "GPUSLICE_IPC_TOKEN", "LD_PRELOAD"}


def test_a_run_inside_a_run_has_its_own_session(node: Node) -> None:
    inner = [str(node.command), "run", "--limit", "1GiB", "--name", "inner", "--", "env", "-0"]
    inside = environment_of(node.gpuslice("run", "--limit", "2GiB", "--name", "outer", "--", *inner).stdout)
    assert inside["GPUSLICE_SESSION"] == "inner"
    assert inside["LD_PRELOAD"].count("libgpuslice.so") == 1


# ---- signals ----


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH"])
def test_a_signal_reaches_the_program(node: Node, name: str) -> None:
    process = node.start("run", "--limit", "1GiB", "--", sys.executable, "-c", LISTENER, name)
    assert read_line(process) == "ready"
    process.send_signal(signal.Signals[name])
    assert read_line(process) == name
    assert process.communicate()[0] == ""
    assert process.returncode == 0


def test_stop_and_continue_are_for_both(node: Node) -> None:
    allocator = node.start_allocator("--limit", "1GiB")
    pids = (allocator.process.pid, allocator.pid)
    allocator.process.send_signal(signal.SIGTSTP)
    eventually(lambda: [process_state(pid) for pid in pids] == ["T", "T"], "both are stopped")
    allocator.process.send_signal(signal.SIGCONT)
    assert allocator.ask("1") == "0"
    assert allocator.end()[0] == 0


def test_a_signal_that_is_to_be_ignored_is_ignored_by_both(node: Node) -> None:
    shell, program = 'trap "" HUP; exec "$@"', "echo ready; read x; echo $x"
    process = subprocess.Popen(
        ["sh", "-c", shell, "sh", node.command, "run", "--limit", "1GiB", "--", "sh", "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=node.environment(),
    )  # fmt: skip
    node.started.append(process)
    assert read_line(process) == "ready"
    process.send_signal(signal.SIGHUP)
    assert process.communicate("still here\n")[0] == "still here\n"
    assert process.returncode == 0


def test_control_c_on_a_terminal_reaches_the_program_once(node: Node) -> None:
    terminal = node.on_terminal("run", "--limit", "1GiB", "--", sys.executable, "-c", LISTENER, "SIGINT")
    terminal.expect(b"ready")
    terminal.type(b"\x03")
    terminal.expect(b"SIGINT")
    terminal.type(b"\x04")  # the end of the program's input
    assert terminal.end() == 0
    assert terminal.shown.count(b"SIGINT") == 1, terminal.shown


# ---- the session's end ----


def test_a_session_outlives_a_killed_run_as_long_as_its_processes(node: Node) -> None:
    allocator = node.start_allocator("--limit", "1GiB", "--name", "train")
    assert allocator.ask("100") == "0"
    allocator.process.kill()
    allocator.process.wait()
    assert allocator.ask("100") == "0"
    (session,) = node.json("ps")
    assert [process["pid"] for process in session["processes"]] == [allocator.pid]
    os.kill(allocator.pid, signal.SIGKILL)
    eventually(lambda: node.json("ps") == [], "the session is released")


def test_processes_that_outlive_the_program_keep_the_session(node: Node, tmp_path: Path) -> None:
    attached = tmp_path / "attached"
    script = f"{ALLOCATOR[0]} {ALLOCATOR[1]} <&3 3<&- & until [ -e {attached} ]; do sleep 0.05; done; exit 3"
    process = node.start("run", "--limit", "1GiB", "--name", "train", "--", "bash", "-c", f"exec 3<&0; {script}")
    pid = int(read_line(process).split()[1])
    attached.touch()
    assert process.wait() == 3
    (session,) = node.json("ps")
    assert [process["pid"] for process in session["processes"]] == [pid]
    process.communicate()
    eventually(lambda: node.json("ps") == [], "the session is released")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_orphans_stay_descendants_of_the_run(node: Node) -> None:
    process = node.start("run", "--limit", "1GiB", "--", "sh", "-c", "(sleep 60 & echo $!); read end; exit 0")
    orphan = int(read_line(process))
    try:
        # The shell between them may still be ending.
        eventually(lambda: parent_of(orphan) == process.pid, "the orphan is the run's")
    finally:
        os.kill(orphan, signal.SIGKILL)
    assert process.communicate("\n")[0] == ""
    assert process.returncode == 0


# ---- with no agent ----


def test_without_an_agent_one_command_is_enough(lonely_node: Node) -> None:
    allocator = lonely_node.start_allocator("--limit", "100MiB")
    (folder,) = lonely_node.runtime.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(lonely_node.private_agents()) == 1
    assert [allocator.ask("100"), allocator.ask("1")] == ["0", "2"]
    assert allocator.end() == (0, "")
    eventually(lambda: not lonely_node.private_agents(), "the private agent ends")
    assert list(lonely_node.runtime.iterdir()) == []


def test_a_private_agent_serves_until_the_last_process_ended_even_if_the_run_is_killed(lonely_node: Node) -> None:
    allocator = lonely_node.start_allocator("--limit", "100MiB", "--grace", "0")
    allocator.process.kill()
    allocator.process.wait()
    assert allocator.ask("100") == "0"
    assert len(lonely_node.private_agents()) == 1
    allocator.process.communicate()
    eventually(lambda: not lonely_node.private_agents(), "the private agent ends")
    eventually(lambda: not list(lonely_node.runtime.iterdir()), "its folder is removed")


def test_a_private_agent_does_not_outlive_a_refused_session(lonely_node: Node) -> None:
    lonely_node.gpuslice("run", "--limit", "1GiB", "--gpu", "7", "--", "true", code=1)
    eventually(lambda: not lonely_node.private_agents(), "the private agent ends")
    eventually(lambda: not list(lonely_node.runtime.iterdir()), "its folder is removed")


def test_a_private_agent_does_not_read_the_configuration_of_the_node_s_agent(lonely_node: Node, tmp_path: Path) -> None:
    extra = {"GPUSLICE_CONFIG": str(tmp_path / "absent.yaml")}
    lonely_node.gpuslice("run", "--limit", "1GiB", "--", "touch", str(tmp_path / "ran"), extra=extra)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("broken", ["folder", "agent"])
def test_nothing_runs_if_no_agent_can_be_started(lonely_node: Node, tmp_path: Path, broken: str) -> None:
    if broken == "folder":
        extra = {"XDG_RUNTIME_DIR": str(tmp_path / "absent")}
    else:  # too deep for a socket's path
        deep = tmp_path / ("deep" * 25)
        deep.mkdir()
        extra = {"XDG_RUNTIME_DIR": str(deep)}
    done = lonely_node.gpuslice("run", "--limit", "1GiB", "--", "touch", str(tmp_path / "ran"), code=1, extra=extra)
    assert done.stderr.startswith("error: no agent is running, and one for this program does not start (")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    assert not list(tmp_path.rglob("gpuslice-run-*"))


def test_an_agent_that_is_asked_for_by_its_folder_must_be_there(lonely_node: Node, tmp_path: Path) -> None:
    done = lonely_node.gpuslice("run", "--limit", "1GiB", "--state", str(tmp_path), "--", "true", code=1)
    assert f"start one with `gpuslice agent --state {tmp_path}`" in done.stderr


# ---- which GPUs ----


def test_a_session_is_on_all_gpus(node: Node) -> None:
    allocator = node.start_allocator("--memory", "25%")
    assert [allocator.ask("devices"), allocator.ask("memory")] == ["2", "10240"]
    (session,) = node.json("ps")
    assert [gpu["limit_bytes"] for gpu in session["gpus"]] == [10 * 2**30] * 2


def test_a_program_sees_the_gpus_that_it_was_given(node: Node) -> None:
    allocator = node.start_allocator("--limit", "1GiB", "--gpu", "1")
    assert [allocator.ask("devices"), allocator.ask("10")] == ["1", "0"]
    (session,) = node.json("ps")
    uuids = [gpu["uuid"] for gpu in node.json("sim", "status")["gpus"]]
    assert [(gpu["uuid"], gpu["held_bytes"]) for gpu in session["gpus"]] == [(uuids[1], 10 * 2**20)]


def test_a_gpu_is_named_by_the_beginning_of_its_uuid(node: Node) -> None:
    uuid = node.json("sim", "status")["gpus"][1]["uuid"]
    node.start_allocator("--limit", "1GiB", "--gpu", uuid[:12])
    assert [gpu["uuid"] for gpu in node.json("ps")[0]["gpus"]] == [uuid]


@pytest.mark.parametrize(("value", "expected"), [("1", [1]), ("1,0", [1, 0]), ("1,-1,0", [1]), ("", [0, 1])])
def test_a_session_is_on_the_gpus_that_cuda_visible_devices_names(node: Node, value: str, expected: list[int]) -> None:
    uuids = [gpu["uuid"] for gpu in node.json("sim", "status")["gpus"]]
    process = node.start("run", "--limit", "1GiB", "--", "sh", "-c", "echo; cat", extra={"CUDA_VISIBLE_DEVICES": value})
    assert read_line(process) == ""
    (session,) = node.json("ps")
    assert [gpu["uuid"] for gpu in session["gpus"]] == [uuids[index] for index in expected]


# ---- the limit ----


def test_memory_up_to_the_limit_and_not_one_more(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--gpu", "0")
    assert [allocator.ask(size) for size in ("200", "56", "1")] == ["0", "0", "2"]
    (session,) = node.json("ps")
    (gpu,) = session["gpus"]
    assert (gpu["held_bytes"], gpu["denials"]) == (256 * 2**20, 1)
    assert allocator.end() == (0, "")


def test_the_processes_of_a_session_share_one_limit(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--gpu", "0")
    assert [allocator.ask(line) for line in ("200", "child 57", "child 56")] == ["0", "2", "0"]
    eventually(lambda: allocator.ask("56") == "0", "what the child had is the parent's")


def test_the_limit_changes_while_the_program_runs(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--gpu", "0", "--name", "train")
    assert allocator.ask("300") == "2"
    node.gpuslice("session", "limit", "train", "512MiB")
    assert [allocator.ask("300"), allocator.ask("memory")] == ["0", "512"]
    node.gpuslice("session", "limit", "train", "100MiB")
    assert allocator.ask("1") == "2"


def test_after_the_time_to_live_memory_is_denied_and_the_program_told(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--ttl", "1s", "--name", "train")
    eventually(lambda: node.json("session", "show", "train")["state"] == "expired", "the session expires")
    assert allocator.ask("1") == "2"
    code, errors = allocator.end()
    assert code == 0
    assert "time to live is over" in errors
    assert errors.count("\n") == 1


def test_ttl_kill_ends_the_program(node: Node) -> None:
    allocator = node.start_allocator("--limit", "256MiB", "--ttl", "500ms", "--ttl-kill")
    assert allocator.process.wait(30) == 137
    eventually(lambda: node.json("ps") == [], "the session is released")


# ---- what goes wrong ----


def test_every_option_is_in_the_help_with_an_example(node: Node) -> None:
    text = node.gpuslice("run", "--help").stdout
    options = ("--limit", "--memory", "--gpu", "--ttl", "--ttl-kill", "--name", "--grace", "--on-breach", "--state")
    assert all(f"  {option} " in text for option in options)
    assert "Example:\n    gpuslice run --limit 256MB -- python train.py" in text


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--", "true"], 2, "Give --limit, for example --limit 256MB, 4GiB or 25%"),
        (["--limit", "1GB", "--memory", "1GB", "--", "true"], 2, "give one of them"),
        (["--limit", "1GB"], 2, "Missing argument 'COMMAND...'"),
        (["--limit", "128m", "--", "true"], 2, "'--limit': '128m' is not an amount of bytes"),
        (["--limit", "120%", "--", "true"], 2, "it is above 100%"),
        (["--limit", "0", "--", "true"], 2, "'--limit': a limit of 0 B is too small: write at least 1MiB"),
        (
            ["--limit", "41GiB", "--", "true"],
            1,
            "--limit: 41GiB is more than the GPU has: give at most 40 GiB, or 100%",
        ),
        (["--limit", "1GB", "--gpu", "2", "--", "true"], 1, "--gpu: '2' is not a GPU of this machine: it has 0 (GPU-"),
        (["--limit", "1GB", "--gpu", "0", "--gpu", "0", "--", "true"], 1, "--gpu: the same GPU is named twice"),
        (["--limit", "1GB", "--ttl", "soon", "--", "true"], 2, "write for example 500ms, 10s, 30m, 1h30m or 2d"),
        (["--limit", "1GB", "--ttl", "0", "--", "true"], 1, "--ttl: the time to live must be above 0"),
        (["--limit", "1GB", "--ttl-kill", "--", "true"], 2, "--ttl-kill needs a --ttl"),
        (["--limit", "1GB", "--name", "My Job", "--", "true"], 2, "'My Job' cannot name a session"),
        (["--limit", "1GB", "--on-breach", "cry", "--", "true"], 2, "'--on-breach'"),
        (["--limit", "1GB", "--", "no-such-program"], 127, "'no-such-program' was not found"),
        (["--limit", "1GB", "--", "/etc/passwd"], 126, "/etc/passwd cannot be run: make it executable"),
        (["--limit", "1GB", "--", "/etc"], 126, "/etc cannot be run: it is a folder"),
    ],
)
def test_an_error_is_one_line_with_the_remedy_and_leaves_nothing(
    node: Node, arguments: list[str], code: int, text: str
) -> None:
    done = node.gpuslice("run", *arguments, code=code)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert text in done.stderr
    assert node.json("ps") == []


def test_a_program_that_turns_out_not_to_run_leaves_no_session(node: Node, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF of nothing")
    program.chmod(0o755)
    done = node.gpuslice("run", "--limit", "1GB", "--", str(program), code=126)
    assert done.stderr == f"error: {program} cannot be run: Exec format error\n"
    assert node.json("ps") == []
