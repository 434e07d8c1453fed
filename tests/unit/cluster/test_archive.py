"""Image archives: the same content gives the same bytes, and every digest is that of what it names."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from gpuslice_cluster.images.archive import Tree, merged_folders, write_image

if TYPE_CHECKING:
    from pathlib import Path

_names = st.text(alphabet="abcdefghij", min_size=1, max_size=6)
_files = st.dictionaries(st.lists(_names, min_size=1, max_size=3).map("/".join), st.binary(max_size=64), max_size=8)


def _bytes(tree: Tree) -> bytes:
    file = io.BytesIO()
    tree.write(file)
    return file.getvalue()


@given(_files)
def test_the_order_in_which_files_are_added_does_not_show(files: dict[str, bytes]) -> None:
    one, other = Tree(), Tree()
    for path, content in files.items():
        one.text(f"data/{path}.txt", content)
    for path, content in reversed(files.items()):
        other.text(f"data/{path}.txt", content)
    assert _bytes(one) == _bytes(other)
    assert one.fingerprint() == other.fingerprint()


@given(_files)
def test_a_layer_holds_what_was_put_into_it_below_folders_that_come_first(files: dict[str, bytes]) -> None:
    tree = Tree()
    for path, content in files.items():
        tree.text(f"data/{path}.txt", content)
    seen: set[str] = set()
    with tarfile.open(fileobj=io.BytesIO(_bytes(tree))) as archive:
        for member in archive:
            assert "/" not in member.name or member.name.rpartition("/")[0] in seen
            seen.add(member.name)
            if member.isfile():
                stored = archive.extractfile(member)
                assert stored is not None
                assert stored.read() == files[member.name.removeprefix("data/").removesuffix(".txt")]
    assert {f"data/{path}.txt" for path in files} <= seen


def test_other_content_or_another_mode_is_another_layer() -> None:
    fingerprints = set()
    for content, mode in ((b"a", 0o644), (b"b", 0o644), (b"a", 0o755)):
        tree = Tree()
        tree.text("file", content, mode=mode)
        fingerprints.add(tree.fingerprint())
    assert len(fingerprints) == 3


def test_a_file_of_this_machine_keeps_its_mode_and_no_layer_knows_its_time(tmp_path: Path) -> None:
    source = tmp_path / "tool"
    source.write_text("#!/bin/sh\n")
    source.chmod(0o700)
    tree = Tree()
    tree.file("bin/tool", source)
    assert tree.entries["usr/bin/tool"].mode == 0o755
    written = io.BytesIO()
    tree.write(written)
    written.seek(0)
    with tarfile.open(fileobj=written) as files:
        assert {each.mtime for each in files} == {0}


def test_programs_and_libraries_land_in_usr_and_are_found_in_both_places() -> None:
    tree = Tree()
    merged_folders(tree)
    tree.text("/bin/sh", b"")
    tree.text("/lib/x86_64-linux-gnu/libc.so.6", b"")
    assert {"usr/bin/sh", "usr/lib/x86_64-linux-gnu/libc.so.6"} <= tree.entries.keys()
    assert tree.entries["bin"].target == "usr/bin"
    assert "bin/sh" not in tree.entries


def test_every_digest_of_an_image_is_that_of_the_blob_it_names(tmp_path: Path) -> None:
    layers = [tmp_path / "below.tar", tmp_path / "above.tar"]
    for number, layer in enumerate(layers):
        tree = Tree()
        tree.text(f"file{number}", b"content")
        layer.write_bytes(_bytes(tree))
    image = io.BytesIO()
    write_image(image, "example.com/thing:dev", layers, environment={"A": "b"}, entrypoint=["/run"])
    blobs = _members(image)
    for name, content in blobs.items():
        if name.startswith("blobs/sha256/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    (described,) = json.loads(blobs["index.json"])["manifests"]
    assert described["annotations"] == {
        "io.containerd.image.name": "example.com/thing:dev",
        "org.opencontainers.image.ref.name": "example.com/thing:dev",
    }
    manifest = _blob(blobs, described)
    configuration = _blob(blobs, manifest["config"])
    assert configuration["config"]["Env"] == ["A=b"]
    assert [layer["digest"] for layer in manifest["layers"]] == configuration["rootfs"]["diff_ids"]
    assert [blobs[_place(layer)] for layer in manifest["layers"]] == [layer.read_bytes() for layer in layers]


def _members(image: io.BytesIO) -> dict[str, bytes]:
    found = {}
    image.seek(0)
    with tarfile.open(fileobj=image) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                found[member.name] = file.read()
    return found


def _place(descriptor: dict[str, Any]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _blob(blobs: dict[str, bytes], descriptor: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    content = blobs[_place(descriptor)]
    assert len(content) == descriptor["size"]
    return json.loads(content)
