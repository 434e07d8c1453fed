"""What a container needs to be in a session, as a CDI spec per claim: mounts, all read-only, and nothing to configure.

Mounted are the interposer's libraries, /etc/ld.so.preload (which the loader reads for every program, whatever its
environment), the folder with the agent's socket (the folder, so that a restarted agent's new socket is seen) and a
file that says session and token. A container with several claims has a session file of each.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.model import devices
from gpuslice.system.files import remove_unfinished, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KIND: Final = f"{devices.DRIVER}/claim"
#: NVIDIA's own devices, by UUID. On a simulated machine, the simulator's have the same names.
VENDOR_KIND: Final = "nvidia.com/gpu"
_VERSION: Final = "0.5.0"
_PREFIX: Final = f"{devices.DRIVER}-"
_SUFFIX: Final = ".json"

#: In the container. native/interposer/session.c knows where the libraries and the sessions are.
LIBRARIES: Final = "/usr/lib/gpuslice-container"
PRELOAD: Final = "/etc/ld.so.preload"
AGENT: Final = "/etc/gpuslice/agent"
SESSIONS: Final = "/etc/gpuslice/sessions"
_READ_ONLY: Final = ("rbind", "ro", "nosuid", "nodev")


def device_name(uid: str, request: str) -> str:
    return f"{uid}-{request}"


def device_id(uid: str, request: str) -> str:
    """The qualified name of our device for a request of a claim."""
    return f"{KIND}={device_name(uid, request)}"


def vendor_id(uuid: str) -> str:
    """The qualified name of the GPU itself."""
    return f"{VENDOR_KIND}={uuid}"


def session_text(session_id: str, token: str, socket_name: str) -> bytes:
    """What the interposer reads in a container."""
    lines = (
        f"GPUSLICE_SESSION={session_id}",
        f"GPUSLICE_IPC_SOCK={AGENT}/{socket_name}",
        f"GPUSLICE_IPC_TOKEN={token}",
    )
    return "\n".join(lines).encode() + b"\n"


def spec(uid: str, session_files: dict[str, Path], *, libraries: Path, agent: Path) -> dict[str, Any]:
    """The CDI spec of a claim: a device per request."""
    common = [
        _mount(libraries, LIBRARIES),
        _mount(libraries / Path(PRELOAD).name, PRELOAD),
        _mount(agent, AGENT),
    ]
    return {
        "cdiVersion": _VERSION,
        "kind": KIND,
        "devices": [
            {
                "name": device_name(uid, request),
                "containerEdits": {
                    # NVIDIA's container hook adds GPUs by this variable, which many images set to "all".
                    "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                    "mounts": [*common, _mount(file, f"{SESSIONS}/{device_name(uid, request)}")],
                },
            }
            for request, file in session_files.items()
        ],
    }


def _mount(host: Path, container: str) -> dict[str, Any]:
    return {"hostPath": str(host), "containerPath": container, "options": list(_READ_ONLY)}


class CdiFolder:
    """The folder where the container runtime looks for specs. Ours are known by their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, uid: str) -> Path:
        return self._folder / f"{_PREFIX}{uid}{_SUFFIX}"

    def write(self, uid: str, content: dict[str, Any]) -> None:
        """Puts the spec there in one step, if it is not there as it is."""
        wanted, path = msgspec.json.encode(content) + b"\n", self.path(uid)
        with suppress(FileNotFoundError):
            if path.read_bytes() == wanted:
                return
        write_durably(path, wanted)

    def remove(self, uid: str) -> None:
        self.path(uid).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        remove_unfinished(self._folder, f"{_PREFIX}*")

    def uids(self) -> set[str]:
        """The claims that have a spec, also one that a former agent wrote."""
        return {
            path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX) for path in self._folder.glob(f"{_PREFIX}*{_SUFFIX}")
        }

    def in_use(self, folders: Iterable[Path]) -> set[Path]:
        """Those of the folders that a spec of ours refers to."""
        texts = [path.read_text() for path in self._folder.glob(f"{_PREFIX}*{_SUFFIX}")]
        return {folder for folder in folders if any(f'"{folder}"' in text for text in texts)}


def install_libraries(sources: Sequence[Path], place: Path) -> Path:
    """Copies the libraries to where containers can mount them from, and returns that folder.

    Each version has a folder of its own, named after its content: what running containers have mounted never changes.
    """
    content = {source.name: source.read_bytes() for source in sources}
    content[Path(PRELOAD).name] = "".join(f"{LIBRARIES}/{source.name}\n" for source in sources).encode()
    digest = hashlib.sha256(b"".join(name.encode() + text for name, text in content.items())).hexdigest()
    folder = place / digest[:16]
    if not folder.exists():
        workshop = place / f".{folder.name}"
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir(parents=True)
        workshop.chmod(0o755)
        for name, text in content.items():
            write_durably(workshop / name, text, mode=0o644)
        workshop.rename(folder)
    return folder


def remove_unused_libraries(place: Path, current: Path, folder: CdiFolder) -> None:
    """Removes versions that no claim has. A container keeps what it has mounted, whatever happens here."""
    others = [found for found in place.iterdir() if found != current]
    for unused in set(others) - folder.in_use(others):
        shutil.rmtree(unused, ignore_errors=True)
