"""Pods of images that this machine does not have: older and newer releases, and programs without glibc."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import gpuslice_cluster
from gpuslice_cluster import node as nodes
from gpuslice_cluster.images import catalogue, debian, root_filesystems
from gpuslice_cluster.images.catalogue import Image
from tests.e2e.gpus import GIB, filled, gpu_pod, total
from tests.e2e.pods import run, start

if TYPE_CHECKING:
    from gpuslice_cluster.clusters import Cluster
    from gpuslice_cluster.images.archive import Tree

OUT_OF_MEMORY = 2
CUDA_TEST = Path(gpuslice_cluster.__file__).parent / "programs" / "cuda_test.c"
STARTS = '#include <stdio.h>\nint main(void) { puts("started"); return 0; }\n'
PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def release(name: str) -> Image:
    """A release of Debian, with cuda-test built for it."""

    def layer(folder: Path) -> Tree:
        root = debian.root(name, catalogue.cache())
        tree = debian.tree(root)
        standard = [debian.library(root, library) for library in ("libc.so.6", "libdl.so.2")]
        tree.file("usr/local/bin/cuda-test", root_filesystems.compiled(CUDA_TEST, folder, standard=standard))
        return tree

    return Image(f"gpuslice.io/{name}:test", (layer,), environment=PATH)


def without_glibc(folder: Path) -> Tree:
    """A shell without libraries, and a program of musl's."""
    tree = root_filesystems.shell()
    source, program = folder / "starts.c", folder / "starts"
    source.write_text(STARTS)
    subprocess.run(["musl-gcc", "-o", program, source], check=True)
    tree.file("usr/local/bin/starts", program)
    loader = next(Path("/lib").glob("ld-musl-*.so.1"))
    tree.file(str(loader), loader.resolve())
    return tree


def load(cluster: Cluster, image: Image) -> str:
    node = nodes.description(cluster.folder)
    assert node is not None
    catalogue.load(node.socket, catalogue.build(image))
    return image.name


@pytest.mark.parametrize("name", ["bullseye", "trixie"])
def test_a_pod_of_another_release_runs_and_is_held_to_its_slice(name: str, alone: Cluster, namespace: str) -> None:
    pod = gpu_pod(name, {"gpuslice.io/memory": "1Gi"})
    pod["spec"]["containers"][0]["image"] = load(alone, release(name))
    start(alone, namespace, pod)

    assert run(alone, namespace, name, "dash", "-c", "echo $((6 * 7))") == "42\n"
    assert total(alone, namespace, name) == GIB
    assert filled(alone, namespace, name, GIB // 8) == (GIB, OUT_OF_MEMORY)


def test_programs_without_glibc_start_as_always(alone: Cluster, namespace: str) -> None:
    pod = gpu_pod("other", {"gpuslice.io/memory": "1Gi"})
    pod["spec"]["containers"][0]["image"] = load(
        alone, Image("gpuslice.io/musl:test", (without_glibc,), environment=PATH)
    )
    start(alone, namespace, pod)

    assert run(alone, namespace, "other", "starts") == "started\n"
    assert run(alone, namespace, "other", "sh", "-c", "echo $((6 * 7))") == "42\n"
