"""The library is loaded into every process of a container: those that do not use a GPU must not notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interposer.node import MIB, Tenant

if TYPE_CHECKING:
    from tests.interposer.conftest import Build
    from tests.interposer.node import Node

#: What a process is like: handlers, mask, umask, threads, descriptors, limits.
SELF = """
import os, resource, signal, sys
import ctypes, decimal, email, http.client, json, sqlite3, ssl, threading
if "cuda" in sys.argv:
    assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
print({s.name: str(signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)})
kept = ("SigB", "SigC", "SigI", "SigP", "Shd", "Umask", "Threads", "NoNewPrivs")  # not SigQ: it is the user's
print([line for line in open("/proc/self/status") if line.startswith(kept)])
print(resource.getrlimit(resource.RLIMIT_NOFILE), sorted(os.environ.keys() - {"LD_PRELOAD"}) != [])
print(sorted(d for d in map(int, os.listdir("/proc/self/fd")) if d < 100))
"""


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", "trap 'echo bye' EXIT; umask; (exit 3); echo $?; ls / | sort | head -3; type -t cd"],
        ["ls", "-l", "/proc/sys/kernel"],
        ["sh", "-c", "ulimit -a; kill -l | head -3"],
        ["cc", "--version"],
        [sys.executable, "-c", SELF],
    ],
    ids=["bash", "ls", "sh", "cc", "python"],
)
def test_a_program_that_uses_no_gpu_runs_as_if_nothing_were_there(command: list[str], node: Node) -> None:
    session = node.session()
    bare = subprocess.run(command, check=True, capture_output=True, text=True, env=node.machine.environment())
    done = node.run(command, session)
    assert (done.stdout, done.stderr, done.returncode) == (bare.stdout, bare.stderr, bare.returncode)
    assert node.client.show(session.id).processes == []


def test_a_program_that_uses_a_gpu_keeps_its_signals_umask_threads_and_descriptors(node: Node) -> None:
    command = [sys.executable, "-c", SELF, "cuda"]
    bare = subprocess.run(command, check=True, capture_output=True, text=True, env=node.machine.environment())
    done = node.run(command, node.session())
    assert (done.stdout, done.stderr) == (bare.stdout, "")


def test_a_program_without_a_session_and_a_gpu_is_left_alone(node: Node) -> None:
    nowhere = {"GPUSLICE_SESSION": "", "GPUSLICE_IPC_SOCK": "", "GPUSLICE_IPC_TOKEN": ""}
    done = node.run([sys.executable, "-c", "print(6 * 7)"], node.session(), nowhere)
    assert (done.stdout, done.stderr) == ("42\n", "")


def test_without_a_driver_there_is_no_device_and_no_crash(node: Node) -> None:
    """As on a node without a GPU: the loader finds our library, and behind it nothing."""
    extra = {"LD_LIBRARY_PATH": "", "GPUSLICE_LIBCUDA": "/nonexistent/libcuda.so.1"}
    program = 'import ctypes; print(ctypes.CDLL("libcuda.so.1").cuInit(0))'
    done = node.run([sys.executable, "-c", program], node.session(), extra)
    assert (done.stdout, done.stderr) == ("100\n", "")


def test_null_for_any_argument_of_any_hook_never_crashes(node: Node, build: Build) -> None:
    driver = node.machine.machine.libraries / "libcuda.so.1"
    program = build("nulls.c", driver, "-ldl")
    done = node.run([program], node.session())
    assert (done.stdout, done.stderr, done.returncode) == ("alive\n", "", 0)
    refused = node.run([program], node.session(), {"GPUSLICE_IPC_TOKEN": "wrong"})
    assert (refused.stdout, refused.returncode) == ("alive\n", 0)


def test_a_shell_that_starts_programs_hands_the_session_on(node: Node) -> None:
    session = node.session(8 * MIB)
    command: list[str | Path] = ["bash", "-c", 'exec 3<&0; "$1" <&3 & wait', "bash", node.tenant_program]
    tenant = Tenant(node.start(command, session), greets=False)
    assert tenant.read().startswith("ready ")
    assert [tenant.ask(line) for line in ("device 0", f"take linear {8 * MIB}", "take linear 512")] == ["0", "0", "2"]


def test_the_connection_is_out_of_the_way_and_closed_on_exec(node: Node) -> None:
    tenant = node.tenant(node.session())
    folder = Path(f"/proc/{tenant.process.pid}/fd")
    sockets = [int(link.name) for link in folder.iterdir() if str(link.readlink()).startswith("socket:")]
    assert [number >= 300 for number in sockets] == [True]
    info = Path(f"/proc/{tenant.process.pid}/fdinfo/{sockets[0]}").read_text()
    flags = next(line for line in info.splitlines() if line.startswith("flags:"))
    assert int(flags.split()[1], 8) & os.O_CLOEXEC
