"""A simulated machine on this one: a folder under /dev/shm with the machine file, the slots file and the libraries.

Nothing half-made is ever seen: a machine is written beside its place and moved there in one step, and moved away in one
step before it is removed.

This module never opens `slots`. POSIX locks on that file show which processes are alive, and a process loses all its
locks on a file when it closes any descriptor of it: opening it here would make this process count as dead.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpuslice
from gpuslice.model.errors import GpusliceError
from gpuslice.simulator import layout
from gpuslice.simulator.configuration import DEFAULT_NAME, check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.model.gpus import GpuModel, MigProfile
    from gpuslice.simulator.configuration import Configuration, SimulatedGpu

ROOT: Final = Path("/dev/shm")  # noqa: S108 - the machine's memory must be shared by its processes; nothing secret is in it
VARIABLE: Final = "GPUSLICE_SIM"

CUDA_VERSION: Final = 13040

_PREFIX: Final = "gpuslice-sim."
LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1")
_FIRST_PCI_BUS: Final = 7  # as on the machines these GPUs come in; 0 would be the host bridge's


class SimulatorError(GpusliceError):
    """Raised when a simulated machine is absent, in the way, or cannot be made."""


@dataclass(frozen=True)
class Machine:
    """One simulated machine that is up."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name.removeprefix(_PREFIX)

    @property
    def libraries(self) -> Path:
        """The folder that LD_LIBRARY_PATH must name first."""
        return self.directory / "lib"

    @property
    def device_file(self) -> Path:
        """An empty file that is mounted into containers under the names of the devices that they may use."""
        return self.directory / "device"

    @property
    def removal(self) -> str:
        """What to do with a machine that this version cannot use."""
        return f"remove it with `gpuslice sim down{name_option(self.name)} --force`"

    def description(self) -> layout.Description:
        """What the machine was made of."""
        path = self.directory / "machine"
        with path.open("rb") as file:
            description = layout.Description.from_buffer_copy(file.read(ctypes.sizeof(layout.Description)))
        if description.magic != layout.MAGIC or description.version != layout.VERSION:
            raise SimulatorError(f"{path} is of another version of gpuslice: {self.removal}")
        return description

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """What a process needs to be on this machine, given the environment it would have."""
        search_path = [str(self.libraries)]
        search_path += [
            folder for folder in base.get("LD_LIBRARY_PATH", "").split(":") if folder and folder != search_path[0]
        ]
        # A machine in its usual place goes by its name, so that the variable reads well.
        value = self.name if self.directory.parent == ROOT else str(self.directory)
        return {VARIABLE: value, "LD_LIBRARY_PATH": ":".join(search_path)}

    def destroy(self) -> None:
        """Removes the machine. Processes that are on it keep the memory they mapped until they end."""
        grave = Path(tempfile.mkdtemp(prefix=f".{self.directory.name}.", dir=self.directory.parent))
        try:
            self.directory.rename(grave)
        except FileNotFoundError:
            raise _absent(self.directory) from None
        finally:
            shutil.rmtree(grave)


def create(configuration: Configuration) -> Machine:
    """Makes the machine. One with the same name must not be up."""
    machine = Machine(ROOT / f"{_PREFIX}{configuration.name}")
    libraries = library_folder()
    workshop = Path(tempfile.mkdtemp(prefix=f".{machine.directory.name}.", dir=ROOT))
    try:
        _write(workshop, configuration, libraries)
        try:
            workshop.rename(machine.directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise SimulatorError(
                f"machine {configuration.name!r} is already up: take it down with"
                f" `gpuslice sim down{name_option(configuration.name)}`, or use another --name"
            ) from None
    except BaseException:
        shutil.rmtree(workshop)
        raise
    return machine


def find(name: str | None = None) -> Machine:
    """The machine of that name (or absolute folder); without one, that of GPUSLICE_SIM, else the default."""
    wanted = name or os.environ.get(VARIABLE) or DEFAULT_NAME
    directory = Path(wanted) if wanted.startswith("/") else ROOT / f"{_PREFIX}{check_name(wanted)}"
    if not (directory / "machine").is_file():
        raise _absent(directory)
    return Machine(directory)


def machines() -> list[Machine]:
    """Every machine that is up, by name."""
    return [Machine(folder) for folder in sorted(ROOT.glob(f"{_PREFIX}*")) if (folder / "machine").is_file()]


def library_folder() -> Path:
    """Where this installation keeps the simulator's libraries."""
    # The package has more than one folder when it is installed for development: sources here, what was built there.
    for package in gpuslice.__path__:
        folder = Path(package) / "lib" / "simulator"
        if all((folder / library).is_file() for library in LIBRARIES):
            return folder
    raise SimulatorError("the simulator's libraries are not installed: build them with `make setup` or `pip install .`")


def name_option(name: str) -> str:
    """How a command names the machine: the default needs no name."""
    return "" if name == DEFAULT_NAME else f" --name {name}"


def _absent(directory: Path) -> SimulatorError:
    name = directory.name.removeprefix(_PREFIX)
    return SimulatorError(f"machine {name!r} is not up: start it with `gpuslice sim up{name_option(name)}`")


def _write(folder: Path, configuration: Configuration, libraries: Path) -> None:
    with (folder / "machine").open("wb") as file:
        file.write(bytes(_description(configuration)))
        file.truncate(layout.MACHINE_BYTES)
    (folder / "slots").touch()
    (folder / "lib").mkdir()
    for library in LIBRARIES:
        _put_library(libraries / library, folder / "lib" / library, configuration.driver.missing)
        (folder / "lib" / library.removesuffix(".1")).symlink_to(library)
    # As with a real driver's device files, every user of the machine may use its GPUs.
    (folder / "machine").chmod(0o666)
    (folder / "slots").chmod(0o666)
    (folder / "lib").chmod(0o755)
    folder.chmod(0o755)


def _put_library(source: Path, target: Path, missing: tuple[str, ...]) -> None:
    """A link to the library; for an older driver a copy, in which the loader does not find what that does not have."""
    content = renamed = source.read_bytes()
    for name in missing:
        # The name as the loader compares it: whole, with the zeros around it in the table of names.
        renamed = renamed.replace(f"\0{name}\0".encode(), f"\0_{name[1:]}\0".encode())
    if renamed == content:
        target.symlink_to(source)
    else:
        target.write_bytes(renamed)
        target.chmod(0o755)


def _description(configuration: Configuration) -> layout.Description:
    return layout.Description(
        magic=layout.MAGIC,
        version=layout.VERSION,
        gpu_count=len(configuration.gpus),
        file_bytes=layout.MACHINE_BYTES,
        kernel_ns=configuration.kernel_ns,
        wave_ns=configuration.wave_ns,
        cuda_version=CUDA_VERSION,
        process_record_bytes=configuration.driver.process_record,
        driver_version=configuration.driver.version.encode(),
        nvml_version=f"{CUDA_VERSION // 1000}.{configuration.driver.version}".encode(),
        machine_name=configuration.name.encode(),
        gpus=tuple(_gpu_spec(index, gpu) for index, gpu in enumerate(configuration.gpus)),
    )


def _gpu_spec(index: int, gpu: SimulatedGpu) -> layout.GpuSpec:
    model = gpu.model
    return layout.GpuSpec(
        name=model.product.encode(),
        model=model.name.encode(),
        uuid=gpu.uuid.encode(),
        serial=f"{1_320_000_000_000 + index}".encode(),
        context_bytes=gpu.context_bytes,
        pci_bus=_FIRST_PCI_BUS + index,
        numa_node=layout.NO_NUMA_NODE,
        mig_capable=bool(model.mig_profiles),
        profile_count=len(model.mig_profiles),
        profiles=tuple(_profile(profile) for profile in model.mig_profiles),
        **_same_named(layout.GpuSpec, model),
    )


def _profile(profile: MigProfile) -> layout.Profile:
    return layout.Profile(
        name=profile.name.encode(),
        placement_count=len(profile.placements),
        placements=tuple(layout.Placement(place.start, place.size) for place in profile.placements),
        **_same_named(layout.Profile, profile),
    )


def _same_named(structure: type[ctypes.Structure], source: GpuModel | MigProfile) -> dict[str, int]:
    """The numbers that the model and the structure call by the same name."""
    names = {field[0] for field in structure._fields_}
    return {
        field.name: value
        for field in dataclasses.fields(source)
        if field.name in names and isinstance(value := getattr(source, field.name), int)
    }
