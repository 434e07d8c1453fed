"""Layers and image archives in the formats of the Open Container Initiative. The same content gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import shutil
import stat
import tarfile
import tempfile
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from gpuslice_cluster.images import derived

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIGURATION: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_COMPRESSED_LAYER: Final = f"{_LAYER}+gzip"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
#: As everywhere since /usr was merged: programs of either place are found in both.
_MERGED: Final = ("bin", "sbin", "lib", "lib64")


class Making(Enum):
    """How a file in a layer comes of its source."""

    COPIED = auto()
    STRIPPED = auto()
    COMPILED = auto()


@dataclass(frozen=True)
class Entry:
    """A file, a link or a folder in a layer."""

    kind: bytes = tarfile.REGTYPE
    source: Path | None = None
    content: bytes = b""
    target: str = ""
    mode: int = 0o644
    making: Making = Making.COPIED


@dataclass
class Tree:
    """What a layer holds, by path without a slash at its head."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def file(self, path: str, source: Path) -> None:
        self._add(path, Entry(source=source, mode=_mode(source)))

    def program(self, path: str, source: Path) -> None:
        """A program or a library, without what only a debugger reads."""
        self._add(path, Entry(source=source, mode=_mode(source), making=Making.STRIPPED))

    def module(self, path: str, source: Path) -> None:
        """A module of Python's, with its compiled code."""
        self.file(path, source)
        self._add(importlib.util.cache_from_source(path), Entry(source=source, making=Making.COMPILED))

    def text(self, path: str, content: str | bytes, *, mode: int = 0o644) -> None:
        data = content.encode() if isinstance(content, str) else content
        self._add(path, Entry(content=data, mode=mode))

    def link(self, path: str, target: str) -> None:
        self._add(path, Entry(tarfile.SYMTYPE, target=target, mode=0o777))

    def folder(self, path: str, *, mode: int = 0o755) -> None:
        self._add(path, Entry(tarfile.DIRTYPE, mode=mode))

    def _add(self, path: str, entry: Entry) -> None:
        parts = PurePosixPath(path.lstrip("/")).parts
        merged = PurePosixPath("usr", *parts) if parts[0] in _MERGED and len(parts) > 1 else PurePosixPath(*parts)
        for parent in list(merged.parents)[-2::-1]:
            self.entries.setdefault(str(parent), Entry(tarfile.DIRTYPE, mode=0o755))
        self.entries[str(merged)] = entry

    def fingerprint(self) -> str:
        """The same for the same content."""
        digest = hashlib.sha256(derived.COMPILER.encode())
        for path, entry in sorted(self.entries.items()):
            content = entry.content if entry.source is None else digest_of(entry.source).encode()
            described = repr(
                (path, entry.kind, entry.target, entry.mode, entry.making.name, hashlib.sha256(content).digest())
            )
            digest.update(described.encode())
        return digest.hexdigest()[:16]

    def write(self, file: IO[bytes]) -> None:
        """As a tar archive, also into a pipe; folders come before what is in them."""
        with tempfile.TemporaryDirectory(prefix="gpuslice-layer-") as scratch:
            made = self._derive(Path(scratch))
            with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for path, entry in sorted(self.entries.items()):
                    information = tarfile.TarInfo(path)
                    information.type = entry.kind
                    information.mode = entry.mode
                    information.linkname = entry.target
                    source = made.get(path, entry.source)
                    if source is not None:
                        information.size = source.stat().st_size
                        with source.open("rb") as opened:
                            archive.addfile(information, opened)
                    else:
                        information.size = len(entry.content)
                        archive.addfile(information, io.BytesIO(entry.content))

    def _derive(self, folder: Path) -> dict[str, Path]:
        """Makes what is not merely copied, in the folder; by path in the layer."""
        made: dict[str, Path] = {}
        modules: list[tuple[Path, str, Path]] = []
        for path, entry in sorted(self.entries.items()):
            if entry.source is None or entry.making is Making.COPIED:
                continue
            made[path] = folder / str(len(made))
            if entry.making is Making.STRIPPED:
                derived.strip(entry.source, made[path])
            else:
                modules.append((entry.source, f"/{importlib.util.source_from_cache(path)}", made[path]))
        derived.compile_modules(modules)
        return made


def merged_folders(tree: Tree) -> None:
    """The links that make /bin and /lib the folders of these names in /usr."""
    for name in _MERGED:
        tree.folder(f"usr/{name}")
        tree.entries[name] = Entry(tarfile.SYMTYPE, target=f"usr/{name}", mode=0o777)


def write_image(  # noqa: PLR0913 - what the format has
    file: IO[bytes],
    name: str,
    layers: Iterable[Path],
    *,
    environment: Mapping[str, str],
    entrypoint: Iterable[str],
    command: Iterable[str] = (),
    user: str = "",
    architecture: str = "amd64",
    compressed: bool = False,
) -> str:
    """An archive that `ctr images import` reads, of layers that are files already. Returns the manifest's digest."""
    files = list(layers)
    configuration = _encode(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {
                **({"User": user} if user else {}),
                "Env": [f"{key}={value}" for key, value in environment.items()],
                "Entrypoint": list(entrypoint),
                "Cmd": list(command),
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in files]},
        }
    )
    with tempfile.TemporaryDirectory(prefix="gpuslice-image-") as scratch:
        if compressed:
            files = [_compress(layer, Path(scratch)) for layer in files]
        manifest = _encode(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIGURATION, configuration),
                "layers": [
                    {
                        "mediaType": _COMPRESSED_LAYER if compressed else _LAYER,
                        "digest": digest_of(layer),
                        "size": layer.stat().st_size,
                    }
                    for layer in files
                ],
            }
        )
        platform = {"platform": {"architecture": architecture, "os": "linux"}}
        annotations = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        described = _descriptor(_MANIFEST, manifest) | platform | {"annotations": annotations}
        tree = Tree()
        tree.text("oci-layout", _encode({"imageLayoutVersion": "1.0.0"}))
        tree.text("index.json", _encode({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [described]}))
        for blob in (configuration, manifest):
            tree.text(_place(_digest(blob)), blob)
        for layer in files:
            tree.file(_place(digest_of(layer)), layer)
        tree.write(file)
    return _digest(manifest)


def _compress(layer: Path, folder: Path) -> Path:
    """The same bytes for the same layer: without a name and a time."""
    target = folder / f"{layer.name}.gz"
    with (
        layer.open("rb") as source,
        target.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed,
    ):
        shutil.copyfileobj(source, packed, 1 << 20)
    return target


def _mode(source: Path) -> int:
    return 0o755 if source.stat().st_mode & stat.S_IXUSR else 0o644


def _descriptor(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _encode(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
