"""Every way in which a program can reach the driver ends at the limit."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpuslice.cli.run import preload
from tests.interposer.drivers import in_front_of_the_simulator
from tests.interposer.node import MIB, OUT_OF_MEMORY
from tests.native.building import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clients.conftest import Clients
    from tests.interposer.conftest import Build
    from tests.interposer.node import Node, Tenant

LIMIT = 32 * MIB
KINDS = ["linear", "pitched", "managed", "async", "default-pool", "own-pool", "physical", "mapped"]
KINDS += ["array-2d", "array-3d", "mipmap", "graph", "capture"]
WAYS = ["soname", "short name"]
WAYS += ["procaddress v1 legacy", "procaddress v1 per-thread", "procaddress v2 legacy", "procaddress v2 per-thread"]
WAYS += ["procaddress ptsz"]


def ends_at_the_limit(node: Node, tenant: Tenant) -> None:
    for kind in KINDS:
        assert tenant.take(kind, LIMIT + 2 * MIB) == OUT_OF_MEMORY, kind
    assert node.used() == [0]
    tenant.fill("linear", LIMIT // 2, times=1)
    tenant.fill("async", LIMIT // 2, times=1)
    for kind in KINDS:
        assert tenant.take(kind, 2 * MIB) == OUT_OF_MEMORY, kind
    assert node.used() == [LIMIT]
    assert tenant.info() == (0, LIMIT)


@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_opens_the_driver(way: str, node: Node) -> None:
    ends_at_the_limit(node, node.tenant(node.session(LIMIT), extra={"TENANT_WAY": way}))


def test_a_program_that_opens_the_driver_by_its_absolute_path(node: Node) -> None:
    path = node.machine.machine.libraries / "libcuda.so.1"
    ends_at_the_limit(node, node.tenant(node.session(LIMIT), extra={"TENANT_PATH": str(path)}))


def test_a_program_that_is_linked_with_the_driver(node: Node, build: Build) -> None:
    driver = node.machine.machine.libraries / "libcuda.so.1"
    program = build("tenant.c", "-DLINKED", driver, name="linked-tenant")
    ends_at_the_limit(node, node.tenant(node.session(LIMIT), program=program))


@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("procaddress")])
def test_a_driver_that_hands_out_other_addresses_than_it_exports(way: str, node: Node, build: Build) -> None:
    driver = in_front_of_the_simulator("odd_driver.c", f"odd-driver-{way.replace(' ', '-')}.so", node, build)
    tenant = node.tenant(node.session(LIMIT), extra={"TENANT_WAY": way, "GPUSLICE_LIBCUDA": str(driver)})
    ends_at_the_limit(node, tenant)


RUNTIMES = ["cudart-11.8", "cudart-12.4", "cudart-12.8", "cudart-12.9", "cudart-13"]


@pytest.mark.parametrize("environment", RUNTIMES)
def test_the_shared_runtime(environment: str, node: Node, build: Build, client: Clients) -> None:
    library = client(environment).library("libcudart.so.*")
    program = build("runtime.c", "-ldl", name="shared-runtime")
    done = node.run([program, library], node.session(LIMIT))
    assert (done.stdout, done.stderr) == ("0 0 2 2 2 0 33554432 0\n", ""), done


@pytest.mark.parametrize("environment", ["cudart-12.9", "cudart-13"])
def test_the_static_runtime(environment: str, node: Node, build: Build, client: Clients) -> None:
    library = client(environment).library("libcudart_static.a")
    program = build("runtime.c", "-DLINKED", library, "-ldl", "-lrt", name=f"static-{environment}")
    done = node.run([program], node.session(LIMIT))
    assert (done.stdout, done.stderr) == ("0 0 2 2 2 0 33554432 0\n", ""), done


# ---- what the library shows the loader ----


def exported(library: Path, kinds: str) -> set[str]:
    listed = subprocess.run(["nm", "--dynamic", "--defined-only", library], check=True, capture_output=True, text=True)
    return {name for _, kind, name in (line.split() for line in listed.stdout.splitlines()) if kind in kinds}


def test_the_list_of_hooks_is_what_the_library_defines_itself() -> None:
    header = (ROOT / "native" / "interposer" / "cuda" / "hooks.h").read_text()
    listed = set(re.findall(r"X\((\w+)\)", header)) - {"X"}
    own = {name for name in exported(preload.library_folder() / "libgpuslice.so", "T") if name.startswith("cu")}
    assert listed == own


@pytest.mark.parametrize(
    ("real", "own", "prefix"),
    [("libcuda.so.1", "libgpuslice.so", "cu"), ("libnvidia-ml.so.1", "libgpuslice-nvml.so", "nvml")],
)
def test_every_function_of_the_real_library_has_a_forwarder(real: str, own: str, prefix: str, node: Node) -> None:
    functions = {name for name in exported(node.machine.machine.libraries / real, "TW") if name.startswith(prefix)}
    assert len(functions) > 300
    assert functions <= exported(preload.library_folder() / own, "TW")


def test_the_loaders_dlsym_is_not_touched() -> None:
    for name in preload.LIBRARIES:
        assert not {"dlsym", "dlvsym", "malloc"} & exported(preload.library_folder() / name, "TWi")
