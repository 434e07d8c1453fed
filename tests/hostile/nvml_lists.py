"""Prints all that NVML says about processes on the first GPU, as JSON: the numbers in every list, and names by number.

nvml_lists.py [PID ...]    whose names are asked for

Has a handle of the GPU when it says `ready`, and goes on with the next line of its input.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

import pynvml

_INSUFFICIENT_SIZE = 7
_NAMES = [
    f"nvmlDeviceGet{kind}RunningProcesses{version}"
    for kind in ("Compute", "Graphics", "MPSCompute")
    for version in ("", "_v2", "_v3")
]


class Entry1(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong))


class Entry2(ctypes.Structure):
    _fields_ = (*Entry1._fields_, ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint))


def running(library: ctypes.CDLL, device: object, name: str) -> list[int]:
    """The list as C programs ask for it: how long is it, then all of it."""
    function, entry = getattr(library, name), Entry2 if "_v" in name else Entry1
    count = ctypes.c_uint(0)
    result = function(device, ctypes.byref(count), None)
    assert result == (_INSUFFICIENT_SIZE if count.value else 0), (name, result, count.value)
    entries = (entry * (count.value + 1))()
    exact = ctypes.c_uint(count.value)
    if count.value:
        assert function(device, ctypes.byref(exact), entries) == 0
        short = ctypes.c_uint(count.value - 1)
        assert function(device, ctypes.byref(short), entries if short.value else None) == _INSUFFICIENT_SIZE
        assert short.value == count.value
    return [each.pid for each in entries[: exact.value]]


def utilized(device: object) -> list[int]:
    try:
        return [sample.pid for sample in pynvml.nvmlDeviceGetProcessUtilization(device, 0)]
    except pynvml.NVMLError_NotFound:
        return []


def name_of(pid: int) -> str:
    try:
        return str(pynvml.nvmlSystemGetProcessName(pid))
    except pynvml.NVMLError_NotFound:
        return ""


def main() -> None:
    pynvml.nvmlInit()
    library = ctypes.CDLL("libnvidia-ml.so.1")
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    lists = {name: running(library, device, name) for name in _NAMES}
    lists["accounting"] = pynvml.nvmlDeviceGetAccountingPids(device)
    lists["utilization"] = utilized(device)
    lists["self"] = [os.getpid()]
    names = {pid: name_of(int(pid)) for pid in sys.argv[1:]}
    sys.stdout.write(json.dumps({"lists": lists, "names": names}) + "\n")


if __name__ == "__main__":
    main()
