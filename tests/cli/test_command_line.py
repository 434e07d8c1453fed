"""What holds for every command: how it is called wrongly, where it cannot print, and what it ends with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.cli.node import Node

#: That print something, on a machine with an agent; the last line needs none.
PRINTING = (
    ("ps",), ("ps", "-o", "json"), ("top", "--once"), ("session", "create", "--limit", "1GiB"), ("sim", "status"),
    ("--help",), ("--version",), ("config", "show"), ("manifests", "--only", "crds"), ("completion", "bash"),
)  # fmt: skip


def run(*arguments: str | Path, how: str = '"$@"', **extra: str) -> subprocess.CompletedProcess[str]:
    """Runs a program as `how` says, a line for a shell, away from anything of the developer's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUSLICE_")} | extra
    return subprocess.run(
        ["bash", "-c", how, "bash", *arguments],
        check=False, capture_output=True, text=True, timeout=60, env=environment,
    )  # fmt: skip


def test_a_group_without_arguments_says_what_can_be_written(gpuslice_command: Path) -> None:
    for group in ((), ("sim",), ("session",), ("config",), ("cluster",), ("cluster", "images")):
        done = run(gpuslice_command, *group)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"Usage: gpuslice {' '.join([*group, ''])}[OPTIONS]")
        assert "Commands:" in done.stderr


def test_the_version_is_told_by_every_name_of_the_command(gpuslice_command: Path) -> None:
    whole = run(gpuslice_command, "--version").stdout
    assert whole.startswith("gpuslice ")
    version = whole.split()[1]
    daemon = gpuslice_command.with_name("gpusliced")
    assert run(daemon, "--version").stdout == f"gpusliced {version}\n"
    assert run(daemon, "-h").stdout.startswith("Usage: gpusliced [OPTIONS]\n")
    assert "see `gpusliced --help`" in run(daemon, "--bogus").stderr
    assert run(sys.executable, "-m", "gpuslice", "--version").stdout == whole


@pytest.mark.parametrize("to", [">/dev/full", ">&-"])
def test_where_it_cannot_print_it_fails_and_says_so(node: Node, to: str) -> None:
    reason = {">/dev/full": "No space left on device", ">&-": "Bad file descriptor"}[to]
    for arguments in PRINTING:
        done = subprocess.run(
            ["bash", "-c", f'"$@" {to}', "bash", node.command, *arguments],
            check=False, capture_output=True, text=True, env=node.environment(),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (1, f"error: standard output: {reason}\n"), arguments


def test_a_reader_that_goes_is_no_error(gpuslice_command: Path) -> None:
    done = run(gpuslice_command, "manifests", "--only", "crds", how='"$@" | head -n 1; exit ${PIPESTATUS[0]}')
    assert (done.returncode, done.stderr) in ((0, ""), (141, ""))
    assert run(gpuslice_command, "--version", how='"$@" | (exec <&-; sleep 1); exit ${PIPESTATUS[0]}').stderr == ""


def test_an_agent_serves_whatever_becomes_of_its_output(lonely_node: Node) -> None:
    for redirected in (">/dev/full", ">&-", ">&- 2>&- <&-"):
        agent = subprocess.Popen(
            ["bash", "-c", f'exec "$@" {redirected}', "bash", lonely_node.command, "agent", "--metrics", "none"],
            stderr=subprocess.DEVNULL, env=lonely_node.environment(),
        )  # fmt: skip
        try:
            wait = f"while ! test -S {lonely_node.state}/admin.sock; do sleep 0.05; done"
            subprocess.run(["bash", "-c", wait], check=True, timeout=60)
            assert lonely_node.json("ps") == []
        finally:
            agent.terminate()
            assert agent.wait(60) == 0, redirected


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        # What is wrong with the line itself is 2.
        (["bogus"], 2, "No such command 'bogus'"),
        (
            ["run", "--limit", "4", "--", "true"],
            2,
            "a limit of 4 B is too small: write at least 1MiB, or 4GiB if that was meant",
        ),
        (["run", "--limit", "0", "--", "true"], 2, "a limit of 0 B is too small: write at least 1MiB"),
        (["run", "--limit", "nan", "--", "true"], 2, "'nan' is not an amount of bytes"),
        (["run", "--limit", "1e99", "--", "true"], 2, "'1e99' is not an amount of bytes"),
        (["run", "--limit", "1GiB", "--ttl", "-1s", "--", "true"], 2, "'-1s' is not a duration"),
        (["sim", "up", "--gpus", "2xFoo"], 2, "Foo"),
        (["sim", "up", "--name", "../x"], 2, "'../x' cannot name a machine"),
        (["sim", "up", "--gpus", "1xT4", "-f", "x.toml"], 2, "give one of them"),
        (["top", "--interval", "nan"], 2, "'nan' is not a duration"),
        (["webhook", "--port", "8443", "--metrics-port", "8443"], 2, "8443 is the port of reviews and of metrics"),
        (["webhook", "--port", "8080"], 2, "8080 is the port of reviews and of metrics"),
        (["webhook", "--port", "70000"], 2, "70000 is not a port"),
        (["agent", "--gpu-policy", "0=foo"], 2, "'foo' is none of share, mig, whole, reserve"),
        (["controller", "--namespace", "Bad_NS"], 2, "'Bad_NS' cannot name a namespace"),
        (["completion", "tcsh"], 2, "'tcsh' is not one of"),
        # All else that fails is 1.
        (["config", "check", "/nowhere"], 1, "No such file or directory"),
        (["config", "show", "--config", "/nowhere"], 1, "No such file or directory"),
        (["sim", "up", "-f", "/nowhere"], 1, "No such file or directory"),
        (["sim", "status", "--name", "nowhere"], 1, "nowhere"),
        (["admit", "-f", "/nowhere"], 1, "No such file or directory"),
        (["manifests", "--client-authority", "/nowhere"], 1, "No such file or directory"),
        (["cluster", "images", "load", "/nowhere"], 1, "No such file or directory"),
        (["cluster", "status", "--name", "nowhere"], 1, "cluster 'nowhere' is not up"),
        (["session", "show", "x", "--state", "/nowhere"], 1, "no agent is running at /nowhere/admin.sock"),
        (["agent", "--state", "/proc/nowhere", "--metrics", "none"], 1, "/proc/nowhere"),
    ],
)
def test_a_mistake_is_told_in_a_line_and_its_code_says_whose_it_is(
    gpuslice_command: Path, arguments: Sequence[str], code: int, text: str
) -> None:
    done = run(gpuslice_command, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_may_not_be_written_is_an_error_of_one_line(node: Node, tmp_path: Path) -> None:
    (tmp_path / "closed").write_text("a file, not a folder")
    for output in (tmp_path / "closed", tmp_path / "closed" / "below", Path("/proc/nowhere")):
        done = node.gpuslice("sim", "cdi", "--output", str(output), code=1)
        assert done.stderr.startswith(f"error: {output}")
        assert done.stderr.count("\n") == 1


def test_a_name_that_is_taken_is_refused(node: Node) -> None:
    node.gpuslice("session", "create", "--limit", "1GiB", "--name", "train")
    for arguments in (("session", "create", "--limit", "1GiB"), ("run", "--limit", "1GiB")):
        done = node.gpuslice(*arguments, "--name", "train", *(["--", "true"] * (arguments[0] == "run")), code=1)
        assert done.stderr == (
            "error: --name: there is a session 'train' already: choose another name, or end it with "
            "`gpuslice session release train`\n"
        )


def test_a_table_on_a_narrow_terminal_keeps_its_words(node: Node) -> None:
    node.gpuslice("session", "create", "--limit", "1GiB", "--name", "train")
    shown = node.gpuslice("ps", extra={"COLUMNS": "20"}).stdout
    assert "train" in shown
    assert "1 GiB" in shown
    assert "…" not in shown
    assert "\x1b" not in node.gpuslice("ps", extra={"NO_COLOR": "1", "TERM": "dumb"}).stdout


def test_a_shell_completes_commands_without_importing_them(gpuslice_command: Path) -> None:
    shell = 'eval "$1"; COMP_WORDS=(gpuslice se); COMP_CWORD=1; _gpuslice_completion gpuslice; echo "${COMPREPLY[*]}"'
    script = run(gpuslice_command, "completion", "bash").stdout
    path = f"{gpuslice_command.parent}:{os.environ['PATH']}"
    assert run(script, how=shell, PATH=path).stdout == "session\n"
    for name in ("bash", "zsh", "fish"):
        assert "_GPUSLICE_COMPLETE" in run(gpuslice_command, "completion", name).stdout


def test_kubectls_own_help_needs_no_cluster(gpuslice_command: Path) -> None:
    for arguments in ((), ("--help",), ("get", "-h"), ("help", "apply")):
        done = run(gpuslice_command, "cluster", "kubectl", "--name", "nowhere", *arguments)
        assert done.returncode == 0, done.stderr
        assert "kubectl" in done.stdout
    done = run(gpuslice_command, "cluster", "kubectl", "--name", "nowhere", "exec", "pod", "--", "x", "--help")
    assert (done.returncode, "is not up" in done.stderr) == (1, True)
