"""File trees of other releases of Debian, made of their packages: what is older or newer than this machine.

Packages are unpacked and not installed: no script of theirs runs, and no root is needed. They come from where this
machine's own do, and are checked with the same keys.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuslice_cluster.binaries import installed
from gpuslice_cluster.images.archive import Tree, merged_folders
from gpuslice_cluster.images.errors import ImageError
from gpuslice_cluster.images.root_filesystems import run

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A shell, its tools, and what both need.
PACKAGES: Final = ("coreutils", "dash")
_KEYS: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def root(release: str, cache: Path, packages: Iterable[str] = PACKAGES) -> Path:
    """The folder with the release's packages, in the cache; fetched once."""
    place = cache / f"debian-{release}-{'-'.join(sorted(packages))}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "debian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=cache, prefix=".debian-") as scratch:
                made = Path(scratch) / "root"
                made.mkdir()
                for package in _download(release, packages, Path(scratch)):
                    run(installed("dpkg-deb"), "--extract", str(package), str(made))
                made.rename(place)
    return place


def tree(folder: Path) -> Tree:
    """The folder's files as a layer."""
    made = Tree()
    merged_folders(made)
    for parent, folders, files in os.walk(folder):
        for name in sorted([*folders, *files]):
            path = Path(parent) / name
            relative = str(path.relative_to(folder))
            if path.is_symlink():
                if relative not in made.entries:  # not /bin and its like, which are links already
                    made.link(relative, str(path.readlink()))
            elif path.is_file():
                made.file(relative, path)
    made.folder("tmp", mode=0o1777)
    return made


def library(folder: Path, name: str) -> Path:
    """The library of the C compiler's kind (libc.so.6) in such a folder."""
    found = next(folder.glob(f"**/lib/*-linux-gnu/{name}"), None)
    if found is None:
        raise ImageError(f"{folder} has no {name}")
    return found


def _download(release: str, packages: Iterable[str], scratch: Path) -> list[Path]:
    """The packages and all that they need, by an apt of its own that knows of no installed package."""
    for name in ("lists/partial", "archives/partial", "parts"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    (scratch / "sources").write_text(f"deb [signed-by={_KEYS}] {_mirror()} {release} main\n")
    settings = {
        "Dir::Etc::sourcelist": scratch / "sources",
        "Dir::Etc::sourceparts": scratch / "parts",
        "Dir::State": scratch,
        "Dir::State::status": scratch / "status",
        "Dir::Cache": scratch,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    apt = [
        installed("apt-get"),
        "--quiet=2",
        "--yes",
        *(f"--option={name}={value}" for name, value in settings.items()),
    ]
    run(*apt, "update")
    run(*apt, "--download-only", "install", *packages)
    return sorted((scratch / "archives").glob("*.deb"))


def _mirror() -> str:
    """Where this machine's own packages come from."""
    if shutil.which("apt-get") is None:
        raise ImageError("file trees of Debian are made by apt-get, which this machine does not have")
    lines = run(installed("apt-get"), "indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages")
    found = [uri for uri, _, label in (line.partition(" ") for line in lines.splitlines()) if label == "Debian"]
    if not found:
        raise ImageError("no archive of Debian is among the sources of apt-get")
    return found[0]
