"""NVML as tests call it: by NVIDIA's Python bindings where they ask what the test asks, else by name."""

from __future__ import annotations

import ctypes
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Opaque in NVML, and to us.
Handle = Any

MIB = 1024**2


def call(name: str, *arguments: Any) -> int:  # noqa: ANN401 - C takes what it is given
    """What the function of that name returns."""
    return int(pynvml._nvmlGetFunctionPointer(name)(*arguments))


def gpu(index: int = 0) -> Handle:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


@contextmanager
def refused(code: int) -> Iterator[None]:
    """The block must end in that NVML error."""
    with pytest.raises(pynvml.NVMLError) as error:
        yield
    assert error.value.value == code, error.value


def names(library: Path) -> list[str]:
    """Every function that the library exports."""
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    return sorted(line.split()[2].split("@")[0] for line in listing.splitlines() if " nvml" in line)


# ---- MIG ----


def enable_mig(device: Handle) -> None:
    assert pynvml.nvmlDeviceSetMigMode(device, pynvml.NVML_DEVICE_MIG_ENABLE) == pynvml.NVML_SUCCESS


def placement(start: int, size: int) -> Any:  # noqa: ANN401 - a structure of the bindings
    return ctypes.byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size))


def create_instance(device: Handle, profile: int, start: int | None = None, size: int = 0) -> Handle:
    """A GPU instance, where the driver wants it or where the test does."""
    if start is None:
        return pynvml.nvmlDeviceCreateGpuInstance(device, profile)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, placement(start, size))


def create_mig_device(device: Handle, profile: int) -> Handle:
    """A GPU instance with one compute instance of all of it; gives the MIG device."""
    instance = create_instance(device, profile)
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    slices = pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(device, profile).sliceCount
    compute = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices]
    made = pynvml.nvmlComputeInstanceGetInfo(pynvml.nvmlGpuInstanceCreateComputeInstance(instance, compute))
    return next(
        mig_device
        for mig_device in mig_devices(device)
        if pynvml.nvmlDeviceGetGpuInstanceId(mig_device) == info.id
        and pynvml.nvmlDeviceGetComputeInstanceId(mig_device) == made.id
    )


def instances(device: Handle, profile: int) -> list[Handle]:
    found = (pynvml.c_nvmlGpuInstance_t * 8)()
    count = ctypes.c_uint()
    pynvml.nvmlDeviceGetGpuInstances(device, profile, found, ctypes.byref(count))
    return list(found[: count.value])


def mig_devices(device: Handle) -> list[Handle]:
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        try:
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index))
        except pynvml.NVMLError_NotFound:
            continue
    return found


def place_of(instance: Handle) -> tuple[int, int]:
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    return info.placement.start, info.placement.size
