"""The file trees that gpuslice runs from in a container: Python with what gpuslice needs, and gpuslice itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import py_compile
import re
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gpuslice
from gpuslice_cluster.images import root_filesystems
from gpuslice_cluster.images.archive import Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where gpuslice and what it needs are in its image.
PACKAGES: Final = "/opt/gpuslice"
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
#: Of Python's own library, what a container has no use for.
_UNWANTED: Final = frozenset(
    {"test", "tests", "idlelib", "turtledemo", "tkinter", "lib2to3", "ensurepip", "site-packages"}
)
_SCRIPT: Final = """\
#!/usr/local/bin/python3
import sys

from {module} import {function}

sys.exit({function}())
"""


def interpreter() -> Tree:
    """Python with its library, and the packages that gpuslice needs, but not gpuslice itself."""
    tree = root_filesystems.shell()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = Path(sys.executable).resolve()
    tree.file(f"usr/local/bin/{version}", program)
    tree.link("usr/local/bin/python3", version)
    _add_standard_library(tree, f"usr/local/lib/{version}")
    for distribution in _requirements("gpuslice"):
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if path.is_file() and ".." not in file.parts:
                tree.file(f"{PACKAGES}/{file}", path, keep_time=True)
    extensions = [entry.source for path, entry in tree.entries.items() if entry.source is not None and ".so" in path]
    root_filesystems.add_libraries(tree, [program, *extensions, *root_filesystems.simulated_driver()])
    if _CERTIFICATES.exists():
        tree.file(str(_CERTIFICATES), _CERTIFICATES.resolve())
    return tree


def own_package(folder: Path) -> Tree:
    """gpuslice: sources, compiled code, native libraries, and its commands. What is compiled lands in the folder."""
    tree = Tree()
    for root in map(Path, gpuslice.__path__):
        for path in sorted(root.rglob("*")):
            relative = path.relative_to(root)
            if not path.is_file() or "__pycache__" in relative.parts:
                continue
            tree.file(f"{PACKAGES}/gpuslice/{relative}", path)
            if path.suffix == ".py":
                cached = importlib.util.cache_from_source(str(relative))
                tree.file(f"{PACKAGES}/gpuslice/{cached}", _compile(path, folder / f"{relative}c"))
    distribution = importlib.metadata.distribution("gpuslice")
    for file in distribution.files or ():
        if file.parts[0].endswith(".dist-info"):
            tree.file(f"{PACKAGES}/{file}", Path(str(distribution.locate_file(file))))
    for script in distribution.entry_points.select(group="console_scripts"):
        text = _SCRIPT.format(module=script.module, function=script.attr)
        tree.text(f"usr/local/bin/{script.name}", text, mode=0o755)
    return tree


def _compile(source: Path, target: Path) -> Path:
    """Compiled code that is trusted whatever the time of its source: the layer depends on content alone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    shown = f"{PACKAGES}/gpuslice/{source.name}"
    py_compile.compile(str(source), cfile=str(target), dfile=shown, doraise=True, invalidation_mode=mode)
    return target


def _add_standard_library(tree: Tree, place: str) -> None:
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    for parent, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in _UNWANTED and not name.startswith("config-")]
        for name in files:
            path = Path(parent) / name
            if path.suffix != ".a" and ".opt-" not in name:
                tree.file(f"{place}/{path.relative_to(library)}", path, keep_time=True)


def _requirements(name: str) -> Iterator[importlib.metadata.Distribution]:
    """What it needs to run, and what that needs, as far as it is installed."""
    seen = {name}
    wanted = list(_direct_requirements(importlib.metadata.distribution(name)))
    while wanted:
        try:
            distribution = importlib.metadata.distribution(wanted.pop())
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system, or another version of Python
        found = distribution.metadata["Name"].lower()
        if found not in seen:
            seen.add(found)
            yield distribution
            wanted.extend(_direct_requirements(distribution))


def _direct_requirements(distribution: importlib.metadata.Distribution) -> Iterator[str]:
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement and (match := re.match(r"[A-Za-z0-9._-]+", requirement)):
            yield match[0]
