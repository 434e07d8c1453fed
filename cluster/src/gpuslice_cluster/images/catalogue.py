"""The images of a cluster: made when they are wanted, kept by what they are made of, loaded into a node."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from gpuslice_cluster.binaries import program
from gpuslice_cluster.containerd import PAUSE_IMAGE
from gpuslice_cluster.images import archive, gpuslice_image, root_filesystems
from gpuslice_cluster.images.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice_cluster.images.archive import Tree

BUSYBOX_IMAGE: Final = "gpuslice.io/busybox:dev"
CUDA_TEST_IMAGE: Final = "gpuslice.io/cuda-test:dev"
GPUSLICE_IMAGE: Final = "gpuslice.io/gpuslice:dev"
_PROGRAMS: Final = Path(__file__).resolve().parent.parent / "programs"
_SECONDS_TO_KEEP: Final = 3 * 24 * 3600
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Image:
    """How an image is made: its layers from the bottom, each given a folder to work in."""

    name: str
    layers: tuple[Callable[[Path], Tree], ...]
    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    #: What runs if the pod does not say.
    command: tuple[str, ...] = ()
    #: Who runs it if the pod does not say; root without one.
    user: str = ""


def _pause(folder: Path) -> Tree:
    tree = archive.Tree()
    tree.file("pause", root_filesystems.compiled(_PROGRAMS / "pause.c", folder, static=True))
    return tree


def _cuda_test(folder: Path) -> Tree:
    tree = root_filesystems.shell()
    made = root_filesystems.compiled(_PROGRAMS / "cuda_test.c", folder)
    tree.file("usr/local/bin/cuda-test", made)
    root_filesystems.add_libraries(tree, [made, *root_filesystems.simulated_driver()])
    return tree


GPUSLICE: Final = Image(
    GPUSLICE_IMAGE,
    # What changes seldom is below: loading a new gpuslice costs only the layer on top.
    (lambda _: gpuslice_image.interpreter(), lambda _: gpuslice_image.own_package()),
    environment={"PATH": _PATH, "PYTHONPATH": gpuslice_image.PACKAGES, "PYTHONUNBUFFERED": "1"},
    entrypoint=("/usr/local/bin/gpuslice",),
    user="65532:65532",
)
IMAGES: Final = (
    Image(PAUSE_IMAGE, (_pause,), entrypoint=("/pause",)),
    Image(BUSYBOX_IMAGE, (lambda _: root_filesystems.shell(),), environment={"PATH": _PATH}),
    Image(CUDA_TEST_IMAGE, (_cuda_test,), environment={"PATH": _PATH}, command=("sleep", "infinity")),
    GPUSLICE,
)


def cache() -> Path:
    """Where layers are kept."""
    given = os.environ.get("GPUSLICE_CACHE")
    return (Path(given) if given else Path.home() / ".cache" / "gpuslice") / "images"


@dataclass(frozen=True)
class Built:
    """An image whose layers are there."""

    image: Image
    layers: tuple[Path, ...]

    @property
    def content(self) -> str:
        """The same for the same content."""
        return hashlib.sha256("".join(layer.name for layer in self.layers).encode()).hexdigest()[:16]


def build(image: Image) -> Built:
    """Makes those of its layers that are not kept from the last time, when they had the same content."""
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpuslice-image-") as scratch:
        built = Built(image, tuple(_layer(make(Path(scratch))) for make in image.layers))
    _forget_old_layers()
    return built


def write(file: IO[bytes], built: Built, name: str = "", *, compressed: bool = False) -> str:
    """The image as an archive, under its own name or another. Returns its digest."""
    image = built.image
    return archive.write_image(
        file,
        name or image.name,
        built.layers,
        environment=image.environment,
        entrypoint=image.entrypoint,
        command=image.command,
        user=image.user,
        compressed=compressed,
    )


def load(socket: Path, built: Built) -> None:
    """Into the container runtime that listens there. The archive is made as it is read: only layers are kept."""
    image = built.image
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen([*_import(socket), "-"], stdin=subprocess.PIPE, stdout=said, stderr=said) as process:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it says itself why it ended
                write(process.stdin, built)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if process.returncode:
            said.seek(0)
            raise ImageError(f"{image.name}: cannot be loaded: {said.read().decode(errors='replace').strip()}")


def load_archive(socket: Path, path: Path) -> None:
    """Imports an image that the user built."""
    root_filesystems.run(*_import(socket), str(path))


def _import(socket: Path) -> tuple[str, ...]:
    return (str(program("ctr")), f"--address={socket}", "--namespace=k8s.io", "images", "import")


def _layer(tree: Tree) -> Path:
    """The layer as a file, found again by what is in it."""
    path = cache() / f"layer-{tree.fingerprint()}.tar"
    if path.exists():
        os.utime(path)
        return path
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            tree.write(file)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


def _forget_old_layers() -> None:
    """Removes layers that no image of any checkout has had for days."""
    for layer in cache().glob("layer-*.tar"):
        with contextlib.suppress(FileNotFoundError):  # another process does the same
            if time.time() - layer.stat().st_mtime > _SECONDS_TO_KEEP:
                layer.unlink()
