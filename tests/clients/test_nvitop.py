"""nvitop, a foreign client, shows the simulated GPUs and the processes on them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.clients.conftest import Clients
    from tests.support import Simulated

MIB = 1024**2

#: A CUDA program: holds memory of GPU 0 until its input ends.
HOLD = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t({64 * MIB})) == 0
print("ready", flush=True)
sys.stdin.read()
"""

SHOW = """
import json, nvitop
print(json.dumps([
    {
        "name": device.name(),
        "total": device.memory_total(),
        "used": device.memory_used(),
        "utilization": device.gpu_utilization(),
        "mig": device.mig_mode(),
        "processes": {pid: process.gpu_memory() for pid, process in device.processes().items()},
    }
    for device in nvitop.Device.all()
]))
"""

PARTITION = """
import json, nvitop, pynvml
pynvml.nvmlInit()
parent = pynvml.nvmlDeviceGetHandleByIndex(0)
pynvml.nvmlDeviceSetMigMode(parent, 1)
for profile, compute in ((9, 2), (14, 1), (19, 0)):
    pynvml.nvmlGpuInstanceCreateComputeInstance(pynvml.nvmlDeviceCreateGpuInstance(parent, profile), compute)
print(json.dumps([[device.name(), device.memory_total()] for device in nvitop.Device(0).mig_devices()]))
"""


def test_nvitop_lists_the_gpus_and_the_processes(client: Clients, simulated: Simulated) -> None:
    nvitop = client("nvml")
    machine = simulated("2xA100-40GB")
    with machine.start([sys.executable, "-c", HOLD]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        busy, idle = json.loads(machine.run([nvitop.python, "-c", SHOW]).stdout)
        table = machine.run([nvitop.python, "-m", "nvitop", "--once"]).stdout
        process.kill()
    name, total = "NVIDIA A100-SXM4-40GB", 40960 * MIB
    expected = {"name": name, "total": total, "utilization": 0, "mig": "Disabled"}
    assert idle == expected | {"used": 0, "processes": {}}
    assert busy == expected | {"used": 64 * MIB, "processes": {str(process.pid): 64 * MIB}}
    assert table.count("A100-SXM4-40GB") == 2
    assert str(process.pid) in table


def test_nvitop_lists_mig_devices(client: Clients, simulated: Simulated) -> None:
    shown = json.loads(simulated().run([client("nvml").python, "-c", PARTITION]).stdout)
    assert shown == [
        ["NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19968 * MIB],
        ["NVIDIA A100-SXM4-40GB MIG 2g.10gb", 9856 * MIB],
        ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864 * MIB],
    ]
