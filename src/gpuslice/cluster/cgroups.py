"""The control groups that a node's pods live in: one folder of this name in each hierarchy, removed with the node."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT: Final = Path("/sys/fs/cgroup")
#: A new cpuset can hold no process until it is told its processors and memory.
_CPUSET: Final = ("cpuset.cpus", "cpuset.mems")


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
    """Removes the groups, innermost first. Their processes must have ended."""
    for hierarchy in _hierarchies():
        for folder in sorted((hierarchy / name).glob("**/"), key=lambda path: len(path.parts), reverse=True):
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()


def _hierarchies() -> Iterator[Path]:
    """One with version 2; one per controller with version 1, where links name some of them twice."""
    if (_ROOT / "cgroup.procs").exists():
        yield _ROOT
        return
    for folder in sorted(_ROOT.iterdir()):
        if not folder.is_symlink() and (folder / "cgroup.procs").exists():
            yield folder
