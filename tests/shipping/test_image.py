"""The image that is shipped: what is in it, that it is made the same again, and that it runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gpuslice_cluster.images import archive, catalogue
from tools import image

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, with its bill of materials beside it, and the root folder that it describes."""
    folder = tmp_path_factory.mktemp("image")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUSLICE_CACHE", str(folder / "cache"))
        path, _ = image.archive(folder)
        image.root(folder / "root")
    return path


@pytest.fixture(scope="module")
def description(made: Path) -> dict[str, Any]:
    """The image's configuration."""
    return _blob(made, _manifest(made)["config"]["digest"])


def test_two_builds_give_one_digest(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSLICE_CACHE", str(tmp_path / "cache"))
    path, digest = image.archive(tmp_path)
    assert archive.digest_of(path) == archive.digest_of(made)
    assert digest == _index(made)["manifests"][0]["digest"]
    for name in ("linux-amd64.cdx.json",):
        bill = f"gpuslice-{image.VERSION}-{name}"
        assert (tmp_path / bill).read_bytes() == (made.parent / bill).read_bytes()


def test_its_layers_are_those_that_the_cluster_runs(description: dict[str, Any]) -> None:
    layers = catalogue.build(catalogue.GPUSLICE).layers
    assert description["rootfs"]["diff_ids"] == [archive.digest_of(layer) for layer in layers]


def test_it_holds_no_compiler_no_development_cluster_and_nothing_of_nvidia(made: Path) -> None:
    names = [str(path.relative_to(made.parent / "root")) for path in (made.parent / "root").rglob("*")]
    unwanted = re.compile(r"gpuslice_cluster|/(cc|gcc|ld|as|strip|pip|cmake|ninja)$|nvidia_cuda|/test/|\.pyx$|\.h$")
    assert [name for name in names if unwanted.search(f"/{name}")] == []


def test_nothing_in_it_tells_where_it_was_made(made: Path) -> None:
    """Else two checkouts would not make the same image."""
    checkout = str(ROOT).encode()
    own = made.parent / "root" / "opt" / "gpuslice"
    assert [str(path) for path in own.rglob("*") if path.is_file() and checkout in path.read_bytes()] == []


def test_all_but_the_agent_run_as_nobody_in_particular(description: dict[str, Any]) -> None:
    assert description["config"]["User"] == "65532:65532"


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_its_command_runs_with_nothing_of_this_machine(made: Path, description: dict[str, Any]) -> None:
    environment = dict(entry.split("=", 1) for entry in description["config"]["Env"])
    command = ["/usr/sbin/chroot", "--userspec=65532:65532", str(made.parent / "root")]
    command += description["config"]["Entrypoint"]
    shown = subprocess.check_output([*command, "--version"], env=environment, text=True, timeout=60)
    assert version("gpuslice") in shown
    pod = (ROOT / "examples" / "castslice.yaml").read_text()
    admitted = subprocess.check_output(
        [*command, "admit", "-f", "-"], input=pod, env=environment, text=True, timeout=60
    )
    assert "resourceClaims" in admitted or "gpu-shared" in admitted
    for part in ("webhook", "controller", "agent"):
        subprocess.run([*command, part, "--help"], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=60)


def test_the_bill_of_materials_names_every_package_in_it(made: Path) -> None:
    bill = json.loads((made.parent / f"gpuslice-{image.VERSION}-linux-amd64.cdx.json").read_text())
    digest = bill["metadata"]["component"]["hashes"][0]["content"]
    assert f"sha256:{digest}" == _index(made)["manifests"][0]["digest"]
    listed = {(each["name"], each["version"]) for each in bill["components"] if each["type"] == "library"}
    there = set()
    for folder in (made.parent / "root" / "opt" / "gpuslice").glob("*.dist-info"):
        name, _, number = folder.name.removesuffix(".dist-info").rpartition("-")
        there.add((name.lower().replace("_", "-").replace(".", "-"), number))
    assert {(name.replace(".", "-"), number) for name, number in listed} == there
    for each in bill["components"]:
        if each["type"] == "library" and each["name"] != "gpuslice":
            assert each["properties"], f"the lock has no {each['name']}"


def test_the_containerfile_says_what_the_image_says(description: dict[str, Any]) -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text().partition("FROM scratch")[2]
    said = [line.split(maxsplit=1) for line in text.splitlines() if line]
    assert [value for word, value in said if word == "ENV"] == description["config"]["Env"]
    assert [value for word, value in said if word == "USER"] == [description["config"]["User"]]
    assert [json.loads(value) for word, value in said if word == "ENTRYPOINT"] == [description["config"]["Entrypoint"]]
    assert "-m tools.image root /image" in (ROOT / "deploy" / "Containerfile").read_text()


def _index(path: Path) -> dict[str, Any]:
    with tarfile.open(path) as files:
        found = files.extractfile("index.json")
        assert found is not None
        return dict(json.load(found))


def _manifest(path: Path) -> dict[str, Any]:
    return _blob(path, _index(path)["manifests"][0]["digest"])


def _blob(path: Path, digest: str) -> dict[str, Any]:
    with tarfile.open(path) as files:
        found = files.extractfile(f"blobs/{digest.replace(':', '/')}")
        assert found is not None
        return dict(json.load(found))
