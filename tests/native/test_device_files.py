"""In a container the simulated driver and NVML see the devices that were given to it, and no others."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpuslice.simulator.cdi import DEVICE_FILES
from tests.native.inside import python_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support import Simulated, SimulatedMachine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a mount namespace")

#: Makes a MIG device of 1g.5gb on GPU `argument`, and prints its UUID.
MAKE_PARTITION = """
import sys, pynvml
from tests.native.nvml import create_mig_device, enable_mig
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(int(sys.argv[1]))
if pynvml.nvmlDeviceGetMigMode(gpu)[0] == 0:
    enable_mig(gpu)
print(pynvml.nvmlDeviceGetUUID(create_mig_device(gpu, 19)))
"""

LOOK = """
import ctypes, json, pynvml
from tests.native.nvml import mig_devices
pynvml.nvmlInit()
gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
cuda = ctypes.CDLL("libcuda.so.1")
count, uuids = ctypes.c_int(), []
started = cuda.cuInit(0)
if started == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
    for ordinal in range(count.value):
        uuid = ctypes.create_string_buffer(16)
        cuda.cuDeviceGetUuid_v2(uuid, ordinal)
        uuids.append(uuid.raw.hex())
print(json.dumps({
    "indexes": [pynvml.nvmlDeviceGetIndex(gpu) for gpu in gpus],
    "minors": [pynvml.nvmlDeviceGetMinorNumber(gpu) for gpu in gpus],
    "gpus": [pynvml.nvmlDeviceGetUUID(gpu) for gpu in gpus],
    "mig": [pynvml.nvmlDeviceGetUUID(device) for gpu in gpus for device in mig_devices(gpu)],
    "started": started,
    "cuda": uuids,
}))
"""


def python(machine: SimulatedMachine, program: str, *arguments: str, files: Sequence[str] | None = None) -> str:
    """Runs the program; with `files`, in a container as far as the simulator can tell."""
    command = [sys.executable, "-c", program, *arguments]
    if files is not None:
        touch = " ".join(f"{DEVICE_FILES}/{name}" for name in files)
        script = f'mount -t tmpfs none /run && mkdir -p {DEVICE_FILES} && touch {touch or "/run/."} && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
    return machine.run(command, extra=python_path()).stdout.strip()


def look(machine: SimulatedMachine, *files: str, limited: bool = True) -> dict[str, Any]:
    found = json.loads(python(machine, LOOK, files=files if limited else None))
    assert isinstance(found, dict)
    return found


def plain(uuid: str) -> str:
    return uuid.split("-", 1)[1].replace("-", "")


def uuids(machine: SimulatedMachine) -> list[str]:
    description = machine.machine.description()
    return [description.gpus[index].uuid.decode() for index in range(description.gpu_count)]


def test_only_the_gpus_with_a_file_are_there_and_numbered_from_zero(simulated: Simulated) -> None:
    machine = simulated("4xT4")
    first, second, third, fourth = uuids(machine)
    assert look(machine, limited=False)["gpus"] == [first, second, third, fourth]
    found = look(machine, second, fourth)
    assert found["gpus"] == [second, fourth]
    assert found["indexes"] == [0, 1]
    assert found["minors"] == [1, 3]
    assert found["cuda"] == [plain(second), plain(fourth)]


def test_the_file_all_makes_all_of_them_visible(simulated: Simulated) -> None:
    machine = simulated("2xT4")
    assert look(machine, "all")["gpus"] == uuids(machine)


def test_a_container_that_was_given_none_has_none(simulated: Simulated) -> None:
    found = look(simulated("2xT4"))
    assert found["gpus"] == []
    assert found["started"] == 100  # CUDA_ERROR_NO_DEVICE


def test_what_has_no_file_is_not_found_by_its_names_either(simulated: Simulated) -> None:
    machine = simulated("2xT4")
    hidden, given = uuids(machine)
    program = """
import sys, pynvml
pynvml.nvmlInit()
for find, name in (
    (pynvml.nvmlDeviceGetHandleByUUID, sys.argv[1]),
    (pynvml.nvmlDeviceGetHandleByPciBusId, "0000:07:00.0"),
    (pynvml.nvmlDeviceGetHandleBySerial, "1320000000000"),
):
    try:
        find(name.encode())
        print("found")
    except pynvml.NVMLError_NotFound:
        print("hidden")
"""
    assert python(machine, program, hidden, files=[given]).split() == ["hidden"] * 3
    assert python(machine, program, hidden, files=[hidden]).split() == ["found"] * 3


def test_a_mig_device_is_seen_with_its_gpu_and_without_its_siblings(simulated: Simulated) -> None:
    machine = simulated("2xA100-40GB")
    first, second = uuids(machine)
    one, other = (python(machine, MAKE_PARTITION, "1") for _ in range(2))
    found = look(machine, other)
    assert (found["gpus"], found["mig"], found["cuda"]) == ([second], [other], [plain(other)])
    both = look(machine, one, other, first)
    assert (both["gpus"], set(both["mig"])) == ([first, second], {one, other})


def test_the_file_of_a_gpu_shows_every_mig_device_on_it(simulated: Simulated) -> None:
    machine = simulated("1xA100-40GB")
    made = {python(machine, MAKE_PARTITION, "0") for _ in range(3)}
    assert set(look(machine, *uuids(machine))["mig"]) == made
