"""The first process of a node: makes its network, its control groups and its file tree, then runs what is in the plan.

    unshare --mount --pid --net --uts --ipc --fork python -m gpuslice_cluster.first_process FOLDER DESCRIPTOR

Processes whose parent ended are handed to it by the kernel, and it collects them. When it ends, so does the whole node.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path
from typing import Final

from gpuslice_cluster import cgroups, reservations
from gpuslice_cluster import network as networks
from gpuslice_cluster import node as nodes

_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 0x40000
_MS_SHARED: Final = 0x100000
_libc: Final = ctypes.CDLL(None, use_errno=True)


def main(folder: Path, outside: int) -> int:
    """`outside` is a descriptor of this machine's network namespace."""
    description = nodes.description(folder.parent)
    assert description is not None
    reservations.write_first_process(description.network)
    networks.join(description.network, outside)
    os.close(outside)
    cgroups.create(description.network.label)
    _make_file_tree(folder, description.network.runtime_folder)
    socket.sethostname(description.name)
    return _run_supervisor(folder)


def _make_file_tree(folder: Path, runtime_folder: Path) -> None:
    _mount("", "/", flags=_MS_PRIVATE | _MS_REC)
    _mount("proc", "/proc", kind="proc")
    # Opened now, because it may be below one of the folders that are about to be covered.
    kept = os.open(folder, os.O_PATH)
    upper, work = folder / "etc", folder / "etc.work"
    for made in (upper, work, runtime_folder):
        made.mkdir(parents=True, exist_ok=True)
    _mount("etc", "/etc", kind="overlay", data=f"lowerdir=/etc,upperdir={upper},workdir={work}")
    for own, place in ((folder / "lib", "/var/lib"), (folder / "log", "/var/log"), (runtime_folder, "/run")):
        own.mkdir(exist_ok=True)
        _mount(f"{own}", place, flags=_MS_BIND)
    # Devices of this machine, or of another cluster, are not this node's.
    for hidden in ("/etc/cdi", "/etc/cni"):
        Path(hidden).mkdir(exist_ok=True)
        _mount("none", hidden, kind="tmpfs")
    if not folder.exists():
        folder.mkdir(parents=True)
        _mount(f"/proc/self/fd/{kept}", f"{folder}", flags=_MS_BIND)
    os.close(kept)
    # Containers may pass mounts on to each other, as on any node.
    _mount("", "/", flags=_MS_SHARED | _MS_REC)


def _mount(source: str, target: str, *, kind: str = "", flags: int = 0, data: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()):
        reason = ctypes.get_errno()
        raise OSError(reason, os.strerror(reason), target)


def _run_supervisor(folder: Path) -> int:
    arguments = [sys.executable, "-m", "gpuslice_cluster.supervisor", str(folder)]
    supervisor = os.posix_spawn(sys.executable, arguments, os.environ)
    while True:
        ended, status = os.wait()
        if ended == supervisor:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
