"""The control groups that a node's pods live in: one folder of this name in each hierarchy, removed with the node."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT: Final = Path("/sys/fs/cgroup")
#: A new cpuset can hold no process until its processors and memory are set.
_CPUSET: Final = ("cpuset.cpus", "cpuset.mems")
_SECONDS_TO_EMPTY: Final = 10.0
_SECONDS_BETWEEN_LOOKS: Final = 0.02


def create(name: str) -> None:
    """Makes the groups. The kubelet insists that its root exists in every hierarchy."""
    for hierarchy in _hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if hierarchy.name == "cpuset":
            for file in _CPUSET:
                (group / file).write_text((hierarchy / file).read_text())
        controllers = hierarchy / "cgroup.controllers"
        if hierarchy == _ROOT and controllers.exists():
            enable = " ".join(f"+{controller}" for controller in controllers.read_text().split())
            for parent in (hierarchy, group):
                (parent / "cgroup.subtree_control").write_text(enable)


def remove(name: str) -> None:
    """Removes the groups, innermost first. Their processes must have ended; kernels differ in when they let them go."""
    latest = time.monotonic() + _SECONDS_TO_EMPTY
    for hierarchy in _hierarchies():
        for folder in sorted((hierarchy / name).glob("**/"), key=lambda path: len(path.parts), reverse=True):
            while not _is_removed(folder):
                if time.monotonic() > latest:
                    raise OSError(errno.EBUSY, "there are processes in it: end them", str(folder))
                time.sleep(_SECONDS_BETWEEN_LOOKS)


def _is_removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _hierarchies() -> Iterator[Path]:
    """One with version 2; one per controller with version 1, where links name some of them twice."""
    if (_ROOT / "cgroup.procs").exists():
        yield _ROOT
        return
    for folder in sorted(_ROOT.iterdir()):
        if not folder.is_symlink() and (folder / "cgroup.procs").exists():
            yield folder
