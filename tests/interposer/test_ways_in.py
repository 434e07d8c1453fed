"""Every way in which a program can reach the driver ends at the limit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.cli.run import preload
from tests.interposer.drivers import in_front_of_the_simulator
from tests.interposer.node import MIB, OUT_OF_MEMORY, Tenant
from tests.native.building import ROOT
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.clients.conftest import Clients
    from tests.interposer.conftest import Build
    from tests.interposer.node import Node

LIMIT = 32 * MIB
KINDS = ["linear", "pitched", "managed", "async", "default-pool", "own-pool", "physical", "mapped"]
KINDS += ["array-2d", "array-3d", "mipmap", "graph", "capture"]
WAYS = ["soname", "short name", "namespace"]
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


def without_library_path(node: Node) -> dict[str, str]:
    """What a process gets where the driver is in a folder that no variable names."""
    return {"LD_LIBRARY_PATH": "", "GPUSLICE_SIM": str(node.machine.machine.directory)}


def test_a_driver_that_only_a_path_leads_to(node: Node, tmp_path: Path) -> None:
    driver = shutil.copy(node.machine.machine.libraries / "libcuda.so.1", tmp_path / "libcuda.so.1")
    extra = {"TENANT_PATH": str(driver)} | without_library_path(node)
    ends_at_the_limit(node, node.tenant(node.session(LIMIT), extra=extra))


def test_a_driver_that_the_program_was_linked_to_find(node: Node, build: Build, tmp_path: Path) -> None:
    """By a path that is written in the program."""
    driver = Path(shutil.copy(node.machine.machine.libraries / "libcuda.so.1", tmp_path / "libcuda.so.1"))
    program = build("tenant.c", "-DLINKED", driver, f"-Wl,-rpath,{tmp_path}", name="rpath-tenant")
    tenant = node.tenant(node.session(LIMIT), program=program, extra=without_library_path(node))
    ends_at_the_limit(node, tenant)


@pytest.mark.parametrize("format_", ["new", "compat"])
def test_a_driver_that_the_loaders_cache_names(format_: str, node: Node, tmp_path: Path) -> None:
    """As the vendor's toolkit arranges it, for a newer driver than the machine's."""
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    shutil.copy(node.machine.machine.libraries / "libcuda.so.1", wanted / "libcuda.so.1")
    cache, folders = tmp_path / "cache", tmp_path / "folders"
    folders.write_text(f"{wanted}\n")
    ldconfig = shutil.which("ldconfig", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
    assert ldconfig is not None
    subprocess.run([ldconfig, "-X", "-c", format_, "-C", cache, "-f", folders], check=True)
    program = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$1" /etc/ld.so.cache && exec "$2"']
    session = node.session(LIMIT)
    process = node.start([*program, "sh", cache, node.tenant_program], session, without_library_path(node))
    tenant = Tenant(process)
    assert tenant.ask("device 0") == "0"
    ends_at_the_limit(node, tenant)


NEEDS_DRIVER = "int cuInit(unsigned int);\nint start(void);\nint start(void) { return cuInit(0); }\n"
OPENS_IN_NAMESPACE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **arguments) {
    (void)count;
    void *library = dlmopen(LM_ID_NEWLM, arguments[1], RTLD_NOW);
    const char *why = dlerror();
    printf("%s\\n", library != NULL ? "opened" : why != NULL ? why : "refused");
    return 0;
}
"""


def test_a_library_in_a_namespace_of_its_own_does_not_bring_the_real_driver(
    node: Node, build: Build, tmp_path: Path
) -> None:
    """Nothing is preloaded there, so it would."""
    (tmp_path / "needs.c").write_text(NEEDS_DRIVER)
    (tmp_path / "opens.c").write_text(OPENS_IN_NAMESPACE)
    driver = node.machine.machine.libraries / "libcuda.so.1"
    library = build(tmp_path / "needs.c", "-shared", "-fPIC", driver, name="needs-driver.so")
    program = build(tmp_path / "opens.c", "-ldl", name="opens-in-namespace")
    session = node.session(LIMIT)
    refused = node.run([program, library], session)
    assert refused.stdout == "refused\n"
    assert "dlmopen is refused" in refused.stderr
    other = node.run([program, "libm.so.6"], session)
    assert (other.stdout, other.stderr) == ("opened\n", "")
    absent = node.run([program, "libabsent.so"], session)
    assert "libabsent.so" in absent.stdout


OPENS_DRIVER_ITSELF = """
#include <dlfcn.h>
#include <stddef.h>
typedef int (*starts)(unsigned);
typedef int (*opens)(void **, unsigned, int);
typedef int (*allocates)(unsigned long long *, size_t);
int take(size_t count);
int take(size_t count) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    unsigned long long address = 0;
    int code = ((starts)dlsym(driver, "cuInit"))(0);
    code = code != 0 ? code : ((opens)dlsym(driver, "cuCtxCreate_v2"))(&context, 0, 0);
    return code != 0 ? code : ((allocates)dlsym(driver, "cuMemAlloc_v2"))(&address, count);
}
"""
TAKES_IN_NAMESPACE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    (void)count;
    void *library = dlmopen(LM_ID_NEWLM, arguments[1], RTLD_NOW);
    int (*take)(size_t) = (int (*)(size_t))dlsym(library, "take");
    printf("%d\\n", take(strtoull(arguments[2], NULL, 10)));
    fflush(stdout);
    getchar();
    return 0;
}
"""


def test_code_in_another_namespace_that_opens_the_driver_itself_is_found(
    node: Node, build: Build, tmp_path: Path
) -> None:
    """No dlopen of ours is there: SECURITY.md says so, and promises that the agent reports it."""
    (tmp_path / "itself.c").write_text(OPENS_DRIVER_ITSELF)
    (tmp_path / "takes.c").write_text(TAKES_IN_NAMESPACE)
    library = build(tmp_path / "itself.c", "-shared", "-fPIC", name="opens-driver-itself.so")
    program = build(tmp_path / "takes.c", "-ldl", name="takes-in-namespace")
    session = node.session(LIMIT)
    rogue = Tenant(node.start([program, library, str(2 * LIMIT)], session), greets=False)
    assert rogue.read() == "0"
    eventually(lambda: node.client.show(session.id).breaches == 1)
    assert node.agent is not None
    assert [line["pid"] for line in node.agent.audit("breach")] == [rogue.process.pid]


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


#: Of what programs look up themselves, those that are in no header that declares the rest: FFmpeg's, and nvidia-smi's.
LOOKED_UP = {
    "libgpuslice.so": {
        *("cuGLGetDevices_v2", "cuGraphicsGLRegisterImage", "cuGraphicsGLRegisterBuffer", "cuGLCtxCreate_v2"),
        *("cuEGLStreamProducerConnect", "cuEGLStreamProducerPresentFrame", "cuEGLStreamConsumerConnect"),
        *("cuGraphicsEGLRegisterImage", "cuGraphicsResourceGetMappedEglFrame", "cuEventCreateFromEGLSync"),
        *("cuVDPAUGetDevice", "cuVDPAUCtxCreate_v2", "cuGraphicsVDPAURegisterVideoSurface"),
        *("cuGLMapBufferObject_v2_ptds", "cuGLMapBufferObjectAsync_v2_ptsz"),
    },
    "libgpuslice-nvml.so": {"nvmlInternalGetExportTable"},
}


@pytest.mark.parametrize(("library", "names"), LOOKED_UP.items())
def test_what_programs_look_up_beyond_the_main_headers_is_there(library: str, names: set[str]) -> None:
    assert names <= exported(preload.library_folder() / library, "TW")


def test_the_loaders_dlsym_is_not_touched() -> None:
    for name in preload.LIBRARIES:
        assert not {"dlsym", "dlvsym", "malloc"} & exported(preload.library_folder() / name, "TWi")
