"""What `gpuslice sim` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuslice.cli import output
from gpuslice.model.values.quantities import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuslice.model.gpus import GpuModel
    from gpuslice.simulator.driver import GpuStatus, MachineStatus


def print_status(found: MachineStatus) -> None:
    """The GPUs, then their MIG devices and processes, if there are any."""
    console = output.console()
    console.print(f"Machine {found.name!r} (simulated), driver {found.driver_version}, CUDA {found.cuda_version}")
    gpus = output.table("GPU", "Name", "UUID", right=("Memory", "Busy", "MIG"))
    for gpu in found.gpus:
        gpus.add_row(str(gpu.index), output.plain(gpu.name), _short(gpu.uuid), *_gpu_cells(gpu))
    console.print(gpus)
    mig = output.table("GPU", "GI", "CI", "Profile", "UUID", right=("Memory",))
    processes = output.table("GPU", "PID", "Process", right=("Memory",))
    for gpu in found.gpus:
        for device in gpu.mig_devices:
            mig.add_row(
                str(gpu.index),
                str(device.gpu_instance),
                str(device.compute_instance),
                device.name.rpartition("MIG ")[2],
                _short(device.uuid),
                _of(device.used_bytes, device.memory_bytes),
            )
        for process in gpu.processes:
            memory = "?" if process.memory_bytes is None else format_bytes(process.memory_bytes)
            processes.add_row(str(gpu.index), str(process.pid), output.plain(process.name), memory)
    if mig.row_count:
        console.print(mig)
    if processes.row_count:
        console.print(processes)
    else:
        console.print("No process uses them.")


def print_machines(rows: Iterable[Mapping[str, Any]]) -> None:
    """One line for each machine."""
    table = output.table("Name", "GPUs", "Folder")
    for row in rows:
        models: list[str] = row["gpus"]
        counted = ", ".join(f"{models.count(model)}x{model}" for model in dict.fromkeys(models))
        table.add_row(output.plain(row["name"]), counted, output.plain(row["directory"]))
    console = output.console()
    if table.row_count:
        console.print(table)
    else:
        console.print("No simulated machine is up: start one with `gpuslice sim up`.")


def print_presets(models: Iterable[GpuModel]) -> None:
    """One line for each model."""
    table = output.table("Preset", "Product", right=("Memory", "SMs", "Compute", "MIG profiles"))
    for model in models:
        table.add_row(
            model.name,
            model.product,
            format_bytes(model.memory_bytes),
            str(model.multiprocessors),
            f"{model.compute_major}.{model.compute_minor}",
            str(len(model.mig_profiles) or "-"),
        )
    output.console().print(table)


def _gpu_cells(gpu: GpuStatus) -> tuple[str, str, str]:
    if gpu.lost or gpu.used_bytes is None or gpu.memory_bytes is None:
        return ("lost", "-", "-")
    busy = "-" if gpu.utilization is None else f"{gpu.utilization} %"
    mig = {None: "-", False: "off", True: "on"}[gpu.mig]
    return (_of(gpu.used_bytes, gpu.memory_bytes), busy, mig)


def _short(uuid: str) -> str:
    """Enough of a UUID to tell a machine's GPUs apart, and to name one to CUDA_VISIBLE_DEVICES."""
    return uuid[: len("GPU-00000000")]


def _of(used: int, total: int) -> str:
    return f"{format_bytes(used)} of {format_bytes(total)}"
