"""`gpuslice sim` as a user runs it: the installed command, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.simulator import machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Simulated

    Command = Callable[..., subprocess.CompletedProcess[str]]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# Takes a context and 64 MiB on the first GPU, says so, and waits to be told to end.
HOLDER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)) == 0
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def gpuslice(gpuslice_command: Path) -> Command:
    """Runs the command; `code` is how it must end."""

    def run(*args: str, code: int = 0, **extra: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if name not in ("GPUSLICE_SIM", "LD_LIBRARY_PATH")}
        # Wide enough that no table wraps what a test looks for.
        done = subprocess.run(
            [gpuslice_command, *args],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=clean | {"COLUMNS": "200"} | extra,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def status(gpuslice: Command, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gpuslice("sim", "status", "--name", name, "-o", "json").stdout)
    return found


def test_the_version_is_shown(gpuslice: Command) -> None:
    assert gpuslice("--version").stdout.startswith("gpuslice 0.")


@pytest.mark.parametrize("command", ["up", "status", "down", "env", "list", "inject", "presets"])
def test_every_command_has_help_with_an_example(gpuslice: Command, command: str) -> None:
    assert f"Example:\n    gpuslice sim {command}" in gpuslice("sim", command, "--help").stdout.replace('eval "$(', "")


def test_a_machine_goes_up_and_down(gpuslice: Command, machine_name: str) -> None:
    gpuslice("sim", "up", "--gpus", "2xA100-40GB,1xT4", "--name", machine_name)
    folder = machine.find(machine_name).directory
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        "machine": 0o666,
        "slots": 0o666,
        "lib": 0o755,
    }
    assert machine_name in gpuslice("sim", "list").stdout
    listed = json.loads(gpuslice("sim", "list", "-o", "json").stdout)
    assert [row["gpus"] for row in listed if row["name"] == machine_name] == [["A100-40GB", "A100-40GB", "T4"]]
    gpuslice("sim", "down", "--name", machine_name)
    assert not folder.exists()
    assert not list(machine.ROOT.glob(f"*{machine_name}*"))


def test_status_shows_the_gpus_as_nvml_does(gpuslice: Command, simulated: Simulated) -> None:
    lab = simulated("1xA100-40GB,1xT4")
    found = status(gpuslice, lab.name)
    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA A100-SXM4-40GB", "Tesla T4"]
    assert [gpu["memory_bytes"] for gpu in found["gpus"]] == [40 * 2**30, 15 * 2**30]
    assert [gpu["mig"] for gpu in found["gpus"]] == [False, None]
    assert [gpu["processes"] for gpu in found["gpus"]] == [[], []]
    table = gpuslice("sim", "status", "--name", lab.name).stdout
    assert "NVIDIA A100-SXM4-40GB" in table
    assert found["gpus"][1]["uuid"][:12] in table
    assert "No process uses them." in table


def test_a_machine_in_use_is_not_taken_down(gpuslice: Command, simulated: Simulated) -> None:
    lab = simulated()
    with lab.start([sys.executable, "-c", HOLDER]) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holding\n"
            (gpu,) = status(gpuslice, lab.name)["gpus"]
            assert [process["pid"] for process in gpu["processes"]] == [holder.pid]
            assert gpu["processes"][0]["memory_bytes"] >= 64 * 2**20
            assert str(holder.pid) in gpuslice("sim", "status", "--name", lab.name).stdout
            refusal = gpuslice("sim", "down", "--name", lab.name, code=1).stderr
            assert refusal.startswith(f"error: machine {lab.name!r} is in use by {holder.pid} (")
            assert "--force" in refusal
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            (gpu,) = status(gpuslice, lab.name)["gpus"]
            assert (gpu["processes"], gpu["used_bytes"]) == ([], 0)
        finally:
            holder.kill()
    gpuslice("sim", "down", "--name", lab.name)


def test_force_takes_down_a_machine_in_use(gpuslice: Command, simulated: Simulated) -> None:
    lab = simulated()
    with lab.start([sys.executable, "-c", HOLDER]) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holding\n"
            gpuslice("sim", "down", "--name", lab.name, "--force")
            assert not lab.directory.exists()
        finally:
            holder.kill()


def test_the_same_name_is_not_up_twice(gpuslice: Command, simulated: Simulated) -> None:
    lab = simulated()
    before = (lab.directory / "machine").stat()
    refusal = gpuslice("sim", "up", "--name", lab.name, code=1).stderr
    assert f"gpuslice sim down --name {lab.name}" in refusal
    assert (lab.directory / "machine").stat().st_ino == before.st_ino
    assert not list(machine.ROOT.glob(f".*{lab.name}*"))


def test_env_puts_a_shell_on_the_machine(gpuslice: Command, simulated: Simulated) -> None:
    lab = simulated()
    script = gpuslice("sim", "env", "--name", lab.name, LD_LIBRARY_PATH="/some where").stdout
    shown = subprocess.run(
        ["sh", "-c", f'{script}\necho "$GPUSLICE_SIM $LD_LIBRARY_PATH"'], check=True, capture_output=True, text=True
    ).stdout
    assert shown == f"{lab.name} {lab.directory}/lib:/some where\n"
    variables = json.loads(gpuslice("sim", "env", "--name", lab.name, "--shell", "json").stdout)
    assert variables == {"GPUSLICE_SIM": lab.name, "LD_LIBRARY_PATH": f"{lab.directory}/lib"}
    assert f"set -gx GPUSLICE_SIM {lab.name}\n" in gpuslice("sim", "env", "--name", lab.name, "--shell", "fish").stdout


def test_env_twice_is_env_once(gpuslice: Command, simulated: Simulated) -> None:
    lab = simulated()
    search_path = f"{lab.directory}/lib"
    variables = gpuslice("sim", "env", "--name", lab.name, "--shell", "json", LD_LIBRARY_PATH=search_path).stdout
    assert json.loads(variables)["LD_LIBRARY_PATH"] == search_path


def test_the_variable_names_the_machine_by_name_or_folder(gpuslice: Command, simulated: Simulated) -> None:
    lab = simulated("1xL4")
    for value in (lab.name, str(lab.directory)):
        found = json.loads(gpuslice("sim", "status", "-o", "json", GPUSLICE_SIM=value).stdout)
        assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA L4"]


def test_a_file_makes_a_machine(gpuslice: Command, machine_name: str) -> None:
    gpuslice("sim", "up", "-f", str(EXAMPLES / "machine.toml"), "--name", machine_name)
    names = [gpu["name"] for gpu in status(gpuslice, machine_name)["gpus"]]
    assert names == ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "Simulated Prototype"]


def test_an_xid_of_79_loses_the_gpu_and_no_other(gpuslice: Command, simulated: Simulated) -> None:
    lab = simulated("2xA100-40GB")
    gpuslice("sim", "inject", "--name", lab.name, "--gpu", "0", "--xid", "79")
    found = status(gpuslice, lab.name)
    assert [gpu["lost"] for gpu in found["gpus"]] == [True, False]
    assert "lost" in gpuslice("sim", "status", "--name", lab.name).stdout
    assert (
        "has GPUs 0 to 1" in gpuslice("sim", "inject", "--name", lab.name, "--gpu", "2", "--xid", "13", code=1).stderr
    )


def test_presets_are_listed(gpuslice: Command) -> None:
    names = [preset["name"] for preset in json.loads(gpuslice("sim", "presets", "-o", "json").stdout)]
    assert {"A100-40GB", "A100-80GB", "H100-80GB", "L4", "T4", "RTX-4090"} <= set(names)
    table = gpuslice("sim", "presets").stdout
    assert all(name in table for name in names)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["sim", "status", "--name", "absent"], 1, "machine 'absent' is not up: start it with `gpuslice sim up"),
        (["sim", "down", "--name", "absent", "--force"], 1, "is not up"),
        (["sim", "up", "--gpus", "2xB999", "--name", "never"], 2, "no GPU model is named 'B999'"),
        (["sim", "up", "--gpus", "1xT4", "-f", "x.toml"], 2, "give one of them"),
        (["sim", "up", "-f", "/nonexistent/x.toml"], 1, "/nonexistent/x.toml: cannot be read"),
        (["sim", "up", "--name", "../x"], 2, "cannot name a machine"),
        (["sim", "inject", "--gpu", "0"], 2, "Missing option '--xid'"),
        (["sim", "nonsense"], 2, "No such command 'nonsense'"),
        (["nonsense"], 2, "No such command 'nonsense'"),
    ],
)
def test_an_error_is_one_line_with_the_remedy(gpuslice: Command, arguments: list[str], code: int, text: str) -> None:
    done = gpuslice(*arguments, code=code)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert text in done.stderr
