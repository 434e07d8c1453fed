"""The CDI devices of a simulated machine: what NVIDIA's are on a real one, under the same names (by UUID).

A container that is given one gets the simulated driver and NVML, the machine's folder, and a file that makes the GPU or
MIG device visible to them (native/simulator/device_files.h). The libraries go where the loader of any glibc image looks
without being told, so no cache has to be rebuilt (NVIDIA's toolkit runs a hook for that) and no LD_LIBRARY_PATH set: it
would replace the image's own. An image that brings a driver library in its loader's cache would find that one first.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuslice.simulator.machine import LIBRARIES, ROOT, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuslice.simulator.machine import Machine

KIND: Final = "nvidia.com/gpu"
DEFAULT_FOLDER: Final = Path("/var/run/cdi")
#: In the container; native/simulator/device_files.h looks there.
DEVICE_FILES: Final = "/run/gpuslice-sim/visible"

_VERSION: Final = "0.5.0"
_ALL: Final = "all"
#: Debian's loader looks into the first, Red Hat's into the second.
_LIBRARY_FOLDERS: Final = ("/usr/lib", "/usr/lib64")
_READ_ONLY: Final = ("rbind", "ro", "nosuid", "nodev")
_READ_WRITE: Final = ("rbind", "rw", "nosuid", "nodev")


def spec(machine: Machine, uuids: Iterable[str], libraries: Path) -> dict[str, Any]:
    """The spec of a machine with these GPUs and MIG devices."""
    mounts = [
        _mount(libraries / name, f"{folder}/{name_inside}", _READ_ONLY)
        for folder in _LIBRARY_FOLDERS
        for name in LIBRARIES
        for name_inside in (name, name.removesuffix(".1"))
    ]
    mounts.append(_mount(machine.directory, str(machine.directory), _READ_WRITE))
    name = machine.name if machine.directory.parent == ROOT else str(machine.directory)
    return {
        "cdiVersion": _VERSION,
        "kind": KIND,
        "containerEdits": {"env": [f"{VARIABLE}={name}"], "mounts": mounts},
        "devices": [
            {
                "name": uuid,
                "containerEdits": {"mounts": [_mount(machine.device_file, f"{DEVICE_FILES}/{uuid}", _READ_ONLY)]},
            }
            for uuid in (*uuids, _ALL)
        ],
    }


def write(machine: Machine, uuids: Iterable[str], folder: Path = DEFAULT_FOLDER) -> Path:
    """Puts the spec where container runtimes look, in one step. Of a node there is one machine, and so one spec."""
    machine.device_file.touch(mode=0o444)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{KIND.replace('/', '-')}-simulated.json"
    # The container runtime may not see what we see, if we are in a container too: follow the machine's own links.
    libraries = (machine.libraries / LIBRARIES[0]).resolve().parent
    content = json.dumps(spec(machine, uuids, libraries), indent=2)
    descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=folder)  # runtimes read *.json and *.yaml
    with os.fdopen(descriptor, "w") as file:
        file.write(content + "\n")
        os.fchmod(descriptor, 0o644)
    Path(new).rename(path)
    return path


def _mount(host: Path, container: str, options: tuple[str, ...]) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": container, "options": list(options)}
