"""The GPUs of this node as NVML and the kernel tell them. These calls may take long: make them in a thread."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pynvml

from gpuslice.node.gpus import mig
from gpuslice.node.gpus.hardware import Gpu
from gpuslice.node.gpus.nvml import NvmlUnavailableError, opened

if TYPE_CHECKING:
    from collections.abc import Callable

SYSFS: Final = Path("/sys")

_ARCHITECTURES: Final = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
}
_PCIE_ROOT: Final = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


def read(sysfs: Path = SYSFS) -> list[Gpu]:
    """Every GPU that answers, in NVML's order. One that fell off the bus does not."""
    found = []
    with opened():
        try:
            driver = _semantic(pynvml.nvmlSystemGetDriverVersion())
            cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(pynvml.NVMLError_GpuIsLost):
                    found.append(_gpu(index, driver, f"{cuda // 1000}.{cuda % 1000 // 10}.0", sysfs))
        except pynvml.NVMLError as error:
            raise NvmlUnavailableError(str(error)) from None
    return found


def _gpu(index: int, driver: str, cuda: str, sysfs: Path) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    bus_id = _bus_id(pynvml.nvmlDeviceGetPciInfo(handle).busId)
    device = sysfs / "bus" / "pci" / "devices" / bus_id
    profiles = mig.profiles(handle)
    return Gpu(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        product=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        architecture=_ARCHITECTURES.get(pynvml.nvmlDeviceGetArchitecture(handle), "Unknown"),
        driver_version=driver,
        cuda_version=cuda,
        pci_bus_id=bus_id,
        pcie_root=_pcie_root(device),
        numa_node=_numa_node(handle, device),
        mig_enabled=mig.is_enabled(handle),
        mig_profiles=profiles,
        instances=tuple(instance for _, instance in mig.instances(handle, profiles)),
    )


def _semantic(version: str) -> str:
    """As three numbers without leading zeros: NVIDIA's 610.43.02 is no semantic version."""
    numbers = [int(part) for part in re.findall(r"\d+", version)][:3]
    return ".".join(str(number) for number in [*numbers, 0, 0, 0][:3])


def _bus_id(text: str | bytes) -> str:
    """As the kernel writes it: NVML has eight digits for the domain, and capitals."""
    text = text.decode() if isinstance(text, bytes) else text
    domain, rest = text.lower().split(":", 1)
    return f"{int(domain, 16):04x}:{rest}"


def _pcie_root(device: Path) -> str | None:
    """The root complex that the device hangs from; None where the kernel does not know the device."""
    with suppress(OSError, RuntimeError):
        return next((part for part in device.resolve(strict=True).parts if _PCIE_ROOT.fullmatch(part)), None)
    return None


def _numa_node(handle: mig.Handle, device: Path) -> int | None:
    told = _optional(lambda: int(pynvml.nvmlDeviceGetNumaNodeId(handle)))
    if told is None:
        with suppress(OSError, ValueError):
            told = int((device / "numa_node").read_text())
    return told if told is not None and told >= 0 else None


def _optional(ask: Callable[[], int]) -> int | None:
    unknown: tuple[Any, ...] = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound)
    try:
        return ask()
    except unknown:
        return None
