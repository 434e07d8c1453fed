"""The file trees that gpuslice runs from in a container: Python with what gpuslice needs, and gpuslice itself."""

from __future__ import annotations

import importlib.metadata
import os
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
    {
        *("test", "tests", "idlelib", "turtledemo", "tkinter", "lib2to3", "ensurepip", "site-packages", "__pycache__"),
        *("distutils", "pydoc_data", "venv"),
    }
)
#: Of packages, what only a compiler reads, and what says where and how pip installed them.
_UNWANTED_SUFFIXES: Final = frozenset({".c", ".cc", ".h", ".pxd", ".pxi", ".pyx", ".pyi", ".pyc", ".a"})
_UNWANTED_RECORDS: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
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
    tree.program(f"usr/local/bin/{version}", program)
    tree.link("usr/local/bin/python3", version)
    _add_standard_library(tree, f"usr/local/lib/{version}")
    for distribution in requirements("gpuslice"):
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if path.is_file() and not _UNWANTED.intersection(file.parts) and ".." not in file.parts:
                _add(tree, f"{PACKAGES}/{file}", path)
    extensions = [entry.source for path, entry in tree.entries.items() if entry.source is not None and ".so" in path]
    root_filesystems.add_libraries(tree, [program, *extensions, *root_filesystems.simulated_driver()])
    if _CERTIFICATES.exists():
        tree.file(str(_CERTIFICATES), _CERTIFICATES.resolve())
    return tree


def own_package() -> Tree:
    """gpuslice: sources, compiled code, native libraries, and its commands."""
    tree = Tree()
    for root in map(Path, gpuslice.__path__):
        for path in sorted(root.rglob("*")):
            relative = path.relative_to(root)
            if path.is_file() and "__pycache__" not in relative.parts:
                _add(tree, f"{PACKAGES}/gpuslice/{relative}", path)
    distribution = importlib.metadata.distribution("gpuslice")
    for file in distribution.files or ():
        if file.parts[0].endswith(".dist-info"):
            _add(tree, f"{PACKAGES}/{file}", Path(str(distribution.locate_file(file))))
    for script in distribution.entry_points.select(group="console_scripts"):
        text = _SCRIPT.format(module=script.module, function=script.attr)
        tree.text(f"usr/local/bin/{script.name}", text, mode=0o755)
    return tree


def _add(tree: Tree, place: str, path: Path) -> None:
    """A file of a package, as the container needs it."""
    if path.suffix in _UNWANTED_SUFFIXES or path.name in _UNWANTED_RECORDS:
        return
    if path.suffix == ".py":
        tree.module(place, path)
    elif ".so" in path.suffixes:
        tree.program(place, path)
    else:
        tree.file(place, path)


def _add_standard_library(tree: Tree, place: str) -> None:
    library = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    for parent, folders, files in os.walk(library):
        folders[:] = [name for name in folders if name not in _UNWANTED and not name.startswith("config-")]
        for name in files:
            path = Path(parent) / name
            if not name.startswith(("_test", "_tkinter", "_xx", "xxlimited")):
                _add(tree, f"{place}/{path.relative_to(library)}", path)


def requirements(name: str) -> Iterator[importlib.metadata.Distribution]:
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
