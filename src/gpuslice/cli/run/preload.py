"""What puts a process into a session: the interposer's libraries, and where to find the session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpuslice
from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.node.admin.messages import SessionView

#: In the order in which they are loaded. The first stands in for the driver, the second for NVML.
LIBRARIES: Final = ("libgpuslice.so", "libgpuslice-nvml.so")
_VARIABLES: Final = ("GPUSLICE_SESSION", "GPUSLICE_IPC_SOCK", "GPUSLICE_IPC_TOKEN", "LD_PRELOAD")


class PreloadError(GpusliceError):
    """Raised when the libraries cannot be put into a process: without them there would be no limit."""


def environment(session: SessionView, base: Mapping[str, str]) -> dict[str, str]:
    """What a process needs to be in the session, given the environment it would have."""
    ours = [str(library_folder() / name) for name in LIBRARIES]
    others = [entry for entry in _entries(base) if entry not in ours]
    return {
        "GPUSLICE_SESSION": session.id,
        "GPUSLICE_IPC_SOCK": session.socket,
        "GPUSLICE_IPC_TOKEN": session.token,
        "LD_PRELOAD": ":".join(ours + others),
    }


def outside(inside: Mapping[str, str]) -> dict[str, str]:
    """The environment without a session, given an environment that may have one."""
    kept = {name: value for name, value in inside.items() if name not in _VARIABLES}
    if others := [entry for entry in _entries(inside) if Path(entry).name not in LIBRARIES]:
        kept["LD_PRELOAD"] = ":".join(others)
    return kept


def _entries(environment: Mapping[str, str]) -> list[str]:
    """What is preloaded. The loader takes spaces and colons alike."""
    return [entry for entry in re.split(r"[ :]+", environment.get("LD_PRELOAD", "")) if entry]


def library_folder() -> Path:
    """Where this installation keeps the interposer's libraries."""
    # The package has more than one folder when it is installed for development: sources here, what was built there.
    for package in gpuslice.__path__:
        folder = Path(package).resolve() / "lib" / "interposer"
        if all((folder / name).is_file() for name in LIBRARIES):
            # The loader would only warn and go on without them.
            if re.search(r"[ :;$]", str(folder)):
                raise PreloadError(
                    f"the loader cannot preload from {folder}: install gpuslice in a folder without ' :;$'"
                )
            return folder
    raise PreloadError("the interposer's libraries are not installed: build them with `make setup` or `pip install .`")
