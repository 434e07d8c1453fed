"""File trees for containers: a shell with its tools, and programs with the libraries that they need."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice.simulator import machine
from gpuslice_cluster.binaries import installed
from gpuslice_cluster.images.archive import Tree, merged_folders
from gpuslice_cluster.images.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_USERS: Final = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
_GROUPS: Final = "root:x:0:\nnogroup:x:65534:\n"
_LIBRARY_LINE: Final = re.compile(r"^\s+(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


def shell() -> Tree:
    """A shell and its tools, all of them one program without libraries."""
    busybox = installed("busybox")
    if libraries([Path(busybox)]):
        raise ImageError(f"{busybox}: needs libraries; install one that does not: tools/debian-packages cluster")
    tree = Tree()
    merged_folders(tree)
    tree.text("etc/passwd", _USERS)
    tree.text("etc/group", _GROUPS)
    tree.folder("root", mode=0o700)
    tree.folder("tmp", mode=0o1777)
    tree.file("usr/bin/busybox", Path(busybox))
    for tool in run(busybox, "--list").split():
        if tool != "busybox":
            tree.link(f"usr/bin/{tool}", "busybox")
    return tree


def compiled(source: Path, folder: Path, *, static: bool = False, standard: Iterable[Path] = ()) -> Path:
    """The program that a C file makes, in the folder; with those standard libraries, if not with this machine's."""
    made = folder / source.stem.replace("_", "-")
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-s", *(("-static",) if static else ()))
    others = ("-nodefaultlibs", "-Wl,--allow-shlib-undefined", *map(str, standard)) if standard else ()
    run(installed("cc"), *flags, "-o", str(made), str(source), *others)
    return made


def add_libraries(tree: Tree, programs: Iterable[Path]) -> None:
    """Adds what these need and the tree lacks, where the loader of this machine looks by itself."""
    own = {entry.source for entry in tree.entries.values()}
    needed = libraries(programs)
    standard = next((path.parent for path in needed if path.name.startswith("libc.so")), Path("/usr/lib"))
    for path in needed:
        if path in own:
            continue
        usual = any(path.is_relative_to(folder) for folder in ("/lib", "/lib64", "/usr/lib"))
        tree.program(str(path if usual else standard / path.name), path.resolve())


def simulated_driver() -> list[Path]:
    """What a node brings into containers with a GPU. As the vendor's, it needs libraries that a program may lack."""
    return sorted(machine.library_folder().iterdir())


def libraries(programs: Iterable[Path]) -> list[Path]:
    """Everything that the loader would load for these; nothing for a program without libraries."""
    command = [installed("ldd"), *map(str, programs)]
    # Its exit code tells only that one of them needs no libraries.
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return sorted({Path(found) for found in _LIBRARY_LINE.findall(result.stdout)})


def run(*command: str) -> str:
    """What it prints. Raises ImageError with what it said if it fails."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ImageError(f"{' '.join(command)}: {result.stderr.strip()}")
    return result.stdout
