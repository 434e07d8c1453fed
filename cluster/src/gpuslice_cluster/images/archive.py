"""Layers and image archives in the formats of the Open Container Initiative. The same content gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIGURATION: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
#: As everywhere since /usr was merged: programs of either place are found in both.
_MERGED: Final = ("bin", "sbin", "lib", "lib64")


@dataclass(frozen=True)
class Entry:
    """A file, a link or a folder in a layer."""

    kind: bytes = tarfile.REGTYPE
    source: Path | None = None
    content: bytes = b""
    target: str = ""
    mode: int = 0o644
    #: Python trusts compiled code only if it knows the time of its source.
    modified: int = 0


@dataclass
class Tree:
    """What a layer holds, by path without a slash at its head."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def file(self, path: str, source: Path, *, keep_time: bool = False) -> None:
        status = source.stat()
        mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
        modified = int(status.st_mtime) if keep_time else 0
        self._add(path, Entry(source=source, mode=mode, modified=modified))

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
        digest = hashlib.sha256()
        for path, entry in sorted(self.entries.items()):
            content = entry.content if entry.source is None else _digest_of(entry.source).encode()
            described = repr(
                (path, entry.kind, entry.target, entry.mode, entry.modified, hashlib.sha256(content).digest())
            )
            digest.update(described.encode())
        return digest.hexdigest()[:16]

    def write(self, file: IO[bytes]) -> None:
        """As a tar archive, also into a pipe; folders come before what is in them."""
        with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path, entry in sorted(self.entries.items()):
                information = tarfile.TarInfo(path)
                information.type = entry.kind
                information.mode = entry.mode
                information.mtime = entry.modified
                information.linkname = entry.target
                if entry.source is not None:
                    information.size = entry.source.stat().st_size
                    with entry.source.open("rb") as source:
                        archive.addfile(information, source)
                else:
                    information.size = len(entry.content)
                    archive.addfile(information, io.BytesIO(entry.content))


def merged_folders(tree: Tree) -> None:
    """The links that make /bin and /lib the folders of these names in /usr."""
    for name in _MERGED:
        tree.folder(f"usr/{name}")
        tree.entries[name] = Entry(tarfile.SYMTYPE, target=f"usr/{name}", mode=0o777)


def write_image(
    file: IO[bytes],
    name: str,
    layers: Iterable[Path],
    *,
    environment: Mapping[str, str],
    entrypoint: Iterable[str],
    command: Iterable[str] = (),
) -> None:
    """An archive that `ctr images import` reads, of layers that are files already."""
    files = list(layers)
    digests = [_digest_of(layer) for layer in files]
    configuration = _encode(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Env": [f"{key}={value}" for key, value in environment.items()],
                "Entrypoint": list(entrypoint),
                "Cmd": list(command),
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
    )
    manifest = _encode(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIGURATION, configuration),
            "layers": [
                {"mediaType": _LAYER, "digest": digest, "size": layer.stat().st_size}
                for digest, layer in zip(digests, files, strict=True)
            ],
        }
    )
    index = _encode(
        {
            "schemaVersion": 2,
            "mediaType": _INDEX,
            "manifests": [_descriptor(_MANIFEST, manifest) | {"annotations": {"io.containerd.image.name": name}}],
        }
    )
    tree = Tree()
    tree.text("oci-layout", _encode({"imageLayoutVersion": "1.0.0"}))
    tree.text("index.json", index)
    for blob in (configuration, manifest):
        tree.text(_place(_digest(blob)), blob)
    for digest, layer in zip(digests, files, strict=True):
        tree.file(_place(digest), layer)
    tree.write(file)


def _descriptor(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(blob), "size": len(blob)}


def _encode(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _place(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
