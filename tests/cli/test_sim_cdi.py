"""`gpuslice sim cdi`: the devices of a simulated machine for containers."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Simulated, SimulatedMachine


def written(command: Path, machine: SimulatedMachine, folder: Path) -> dict[str, Any]:
    machine.run([command, "sim", "cdi", "--name", machine.name, "--output", folder])
    (path,) = folder.glob("*")
    assert path.suffix == ".json"
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def test_every_gpu_is_a_device_named_by_its_uuid(gpuslice_command: Path, simulated: Simulated, tmp_path: Path) -> None:
    machine = simulated("2xT4")
    spec = written(gpuslice_command, machine, tmp_path)
    description = machine.machine.description()
    assert spec["kind"] == "nvidia.com/gpu"
    assert [device["name"] for device in spec["devices"]] == [
        description.gpus[0].uuid.decode(),
        description.gpus[1].uuid.decode(),
        "all",
    ]
    assert spec["containerEdits"]["env"] == [f"GPUSLICE_SIM={machine.name}"]


def test_what_is_mounted_is_there(gpuslice_command: Path, simulated: Simulated, tmp_path: Path) -> None:
    spec = written(gpuslice_command, simulated("1xT4"), tmp_path)
    mounts = spec["containerEdits"]["mounts"] + spec["devices"][0]["containerEdits"]["mounts"]
    for mount in mounts:
        assert os.path.exists(mount["hostPath"])  # noqa: PTH110 - as the container runtime looks
        assert not os.path.islink(mount["hostPath"])  # noqa: PTH114 - what it points to is not in the container
    inside = {mount["containerPath"] for mount in mounts}
    assert {"/usr/lib/libcuda.so.1", "/usr/lib64/libnvidia-ml.so.1", "/usr/lib/libcuda.so"} <= inside


def test_writing_again_replaces_the_spec(gpuslice_command: Path, simulated: Simulated, tmp_path: Path) -> None:
    machine = simulated("1xA100-40GB")
    assert len(written(gpuslice_command, machine, tmp_path / "cdi")["devices"]) == 2
    program = """
import sys
from pathlib import Path
from gpuslice.node.gpus.partitions import Partitions
print(Partitions(Path(sys.argv[1])).make(sys.argv[2], "1g.5gb", 6))
"""
    uuid = machine.machine.description().gpus[0].uuid.decode()
    python = gpuslice_command.parent / "python"
    made = machine.run([python, "-c", program, tmp_path / "state", uuid]).stdout.strip()
    again = written(gpuslice_command, machine, tmp_path / "cdi")
    assert [device["name"] for device in again["devices"]] == [uuid, made, "all"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_root_with_the_mounts_of_one_device_has_that_gpu_and_no_variable_for_the_loader(
    gpuslice_command: Path, simulated: Simulated, tmp_path: Path
) -> None:
    """As a container runtime would do it, onto this machine's own root in a namespace that goes with the process."""
    machine = simulated("2xT4")
    spec = written(gpuslice_command, machine, tmp_path / "cdi")
    second = spec["devices"][1]
    steps = ["mount -t tmpfs none /run"]
    libraries = [
        mount
        for mount in spec["containerEdits"]["mounts"]
        if mount["containerPath"].startswith("/usr/lib/") and mount["containerPath"].endswith(".so.1")
    ]
    # The root is this machine's own, so what is made in it goes into memory.
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    steps.append(f"mount -t tmpfs none {overlay} && mkdir {overlay}/upper {overlay}/work")
    steps.append(f"mount -t overlay -o lowerdir=/usr/lib,upperdir={overlay}/upper,workdir={overlay}/work none /usr/lib")
    for mount in (*libraries, *second["containerEdits"]["mounts"]):
        target = mount["containerPath"]
        steps.append(f"mkdir -p $(dirname {target}) && touch {target} && mount --bind {mount['hostPath']} {target}")
    program = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); assert cuda.cuInit(0) == 0; "
        "count = ctypes.c_int(); cuda.cuDeviceGetCount(ctypes.byref(count)); "
        "uuid = ctypes.create_string_buffer(16); cuda.cuDeviceGetUuid_v2(uuid, 0); "
        "print(count.value, uuid.raw.hex())"
    )
    script = " && ".join([*steps, 'exec "$@"'])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", gpuslice_command.parent / "python", "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], **dict([spec["containerEdits"]["env"][0].split("=")])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", second["name"].removeprefix("GPU-").replace("-", "")]
