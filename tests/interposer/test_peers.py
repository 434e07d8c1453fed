"""What users of other interposers complain about (facts/peers.md), one test per complaint that concerns memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.admin.messages import GpuShare
from tests.interposer.node import MIB, OUT_OF_MEMORY, Tenant
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.interposer.conftest import Build, MakeNode
    from tests.interposer.node import Node

LIMIT = 64 * MIB
PIECE = 8 * MIB


def test_deadlock_after_sigkill_of_a_lock_holder(node: Node, build: Build) -> None:
    """There is no lock that a dead process could hold: survivors answer, and newcomers are let in."""
    session = node.session(LIMIT)
    driver = node.machine.machine.libraries / "libcuda.so.1"
    storm = Tenant(node.start([build("storm.c", driver), "7"], session), greets=False)
    bystander = node.tenant(session)
    for _ in range(5):
        assert storm.ask("20") == "20 28 8 0"
        bystander.fill("linear", PIECE, times=1)
        assert bystander.give("free", bystander.blocks - 1) == 0
        newcomer = node.tenant(session)
        newcomer.fill("linear", PIECE, times=1)
        newcomer.kill()


def test_sigkill_inside_cuinit_does_not_keep_the_next_process_waiting(node: Node) -> None:
    session = node.session(LIMIT)
    for delay in range(40):
        process = node.start([node.tenant_program], session)
        time.sleep(delay * 0.0001)
        process.kill()
        process.wait()
    tenant = node.tenant(session)
    eventually(lambda: len(node.client.show(session.id).processes) == 1, "the dead are forgotten")
    tenant.fill("linear", LIMIT, times=1)


def test_accounting_lost_when_slots_are_compacted(node: Node) -> None:
    """A process in the middle ends, cleanly or not: the others keep their slots and stay counted."""
    session = node.session(LIMIT)
    tenants = [node.tenant(session) for _ in range(4)]
    for tenant in tenants:
        tenant.fill("linear", PIECE, times=1)
    slots = {process.pid: process.slot for process in node.client.show(session.id).processes}
    tenants[1].kill()
    assert tenants[2].close() == ""
    eventually(lambda: node.held(session) == [2 * PIECE], "two are left")
    left = {process.pid: process.slot for process in node.client.show(session.id).processes}
    assert left == {tenant.process.pid: slots[tenant.process.pid] for tenant in (tenants[0], tenants[3])}
    assert tenants[0].info() == (LIMIT - 2 * PIECE, LIMIT)
    assert tenants[3].take("linear", LIMIT - PIECE) == OUT_OF_MEMORY


def test_check_then_add_lets_two_processes_pass_the_limit_together(node: Node) -> None:
    session = node.session(LIMIT)
    tenants = [node.tenant(session) for _ in range(8)]
    for _ in range(20):
        with ThreadPoolExecutor(len(tenants)) as together:
            codes = list(together.map(lambda tenant: tenant.take("linear", LIMIT * 3 // 8), tenants))
        assert sorted(codes) == [0, 0] + [OUT_OF_MEMORY] * 6
        assert node.used()[0] <= LIMIT
        for tenant, code in zip(tenants, codes, strict=True):
            if code == 0:
                assert tenant.give("free", tenant.blocks - 1) == 0
        assert node.held(session) == [0]


@pytest.mark.parametrize("kind", ["async", "default-pool", "own-pool", "physical", "mapped"])
def test_async_pools_and_vmm_not_counted(kind: str, node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    assert tenant.take(kind, 16 * LIMIT) == OUT_OF_MEMORY  # and not -1
    tenant.fill(kind, PIECE, times=8)
    assert tenant.take(kind, 2 * MIB) == OUT_OF_MEMORY
    assert node.held(session) == node.used() == [LIMIT]


@pytest.mark.parametrize(
    ("kind", "how"), [("linear", "free-async"), ("async", "free"), ("default-pool", "free"), ("own-pool", "free-async")]
)
def test_memory_freed_by_the_other_call_leaks(kind: str, how: str, node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    for _ in range(20):
        tenant.fill(kind, LIMIT, times=1)
        assert tenant.give(how, tenant.blocks - 1) == 0
    assert tenant.do("synchronize") == 0
    if kind == "own-pool":
        assert tenant.do("trim-pool") == 0
    assert node.held(session) == node.used() == [0]


@pytest.mark.parametrize(
    "kind", ["pitched", "array-1d", "array-2d", "array-3d", "mipmap", "graph", "graph-node", "capture"]
)
def test_the_whole_device_can_be_had_past_the_limit(kind: str, node: Node) -> None:
    tenant = node.tenant(node.session(LIMIT))
    granted = 0
    while tenant.take(kind, PIECE) == 0:
        granted += PIECE
        assert granted <= LIMIT
    assert granted == LIMIT
    assert node.used() == [LIMIT]


def test_a_release_threshold_keeps_freed_memory_uncounted(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    (block,) = tenant.fill("own-pool", LIMIT, times=1)
    assert tenant.give("free-async", block) == 0
    assert tenant.do("synchronize") == 0
    assert node.used() == [LIMIT]
    assert tenant.take("linear", 512) == OUT_OF_MEMORY


def test_counters_never_underflow(node: Node) -> None:
    """Freed twice, freed by strangers, freed and refused: never more free than there is."""
    session = node.session(LIMIT)
    tenant, other = node.tenant(session), node.tenant(session)
    for kind, how in (("linear", "free"), ("async", "free-async"), ("physical", "release"), ("array-2d", "array")):
        (block,) = tenant.fill(kind, PIECE, times=1)
        assert tenant.give(how, block) == 0
        assert tenant.give(how, block) != 0
        assert tenant.do("free-unknown") != 0
        assert tenant.do("synchronize") == 0
        assert node.held(session) == [0]
        assert tenant.info() == other.info() == (LIMIT, LIMIT)
    assert tenant.take("linear", 2**63) == OUT_OF_MEMORY
    assert tenant.take("physical", 2**63) == OUT_OF_MEMORY
    assert tenant.take("array-3d", 2**62) != 0
    assert tenant.info() == (LIMIT, LIMIT)


def test_false_out_of_memory(node: Node) -> None:
    """Two that together fill the limit exactly are never refused, however they meet."""
    session = node.session(LIMIT)
    pair = [node.tenant(session), node.tenant(session)]

    def churn(tenant: Tenant) -> None:
        for _ in range(300):
            codes.append(tenant.take("linear", LIMIT // 2))
            tenant.give("free", tenant.blocks - 1)

    codes: list[int] = []
    threads = [threading.Thread(target=churn, args=(tenant,)) for tenant in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes) == {0}
    assert node.client.show(session.id).denials == 0


def test_the_memory_shown_inside_differs_from_the_hosts(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    for kind in ("linear", "async", "physical", "array-2d", "graph", "managed"):
        tenant.fill(kind, PIECE, times=1)
        free, total = tenant.info()
        assert total - free == node.held(session)[0] == node.used()[0]


def test_many_processes_starting_at_once_take_long(node: Node) -> None:
    """Twenty at once: each is in the session, and none has waited for another's time-out."""
    session = node.session(LIMIT)
    started = [node.start([node.tenant_program], session) for _ in range(20)]
    tenants = [Tenant(process) for process in started]
    assert [tenant.initialized for tenant in tenants] == ["0"] * 20
    assert len(node.client.show(session.id).processes) == 20


def test_dlsym_override_breaks_rtld_next_and_imports(node: Node, tmp_path: Path) -> None:
    source, library = tmp_path / "next.c", tmp_path / "libnext.so"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stddef.h>\nint ours(void);\n"
        'int ours(void) { return dlsym(RTLD_NEXT, "malloc") != NULL && dlsym(RTLD_DEFAULT, "cuInit") != NULL\n'
        '    && dlsym(RTLD_NEXT, "dlsym") == (void *)dlsym; }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    program = f"import ctypes, ssl, sqlite3, numbers; print(ctypes.CDLL({str(library)!r}).ours())"
    done = node.run([sys.executable, "-c", program], node.session(LIMIT))
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_signal_handlers_and_umask_clobbered(node: Node) -> None:
    """As the kernel sees them: before the driver is used and after."""
    tenant = node.tenant(node.session(LIMIT), device=None)
    bare = Tenant(node.start([node.tenant_program], None))
    for process in (tenant, bare):
        assert process.ask("device 0") == "0"
        process.fill("linear", MIB, times=1)
    seen = [_signals(process.process.pid) for process in (tenant, bare)]
    assert seen[0] == seen[1]
    assert signal.getsignal(signal.SIGSEGV) == signal.SIG_DFL


def _signals(pid: int) -> list[str]:
    status = Path(f"/proc/{pid}/status").read_text()
    return re.findall(r"^(?:Sig|Umask|Threads).*$", status, re.MULTILINE)


def test_null_arguments_crash(node: Node, build: Build) -> None:
    program = build("nulls.c", node.machine.machine.libraries / "libcuda.so.1", "-ldl")
    assert node.run([program], node.session(LIMIT)).stdout == "alive\n"


def test_visible_devices_that_do_not_start_at_zero(make_node: MakeNode) -> None:
    node = make_node("2xT4")
    uuids = [gpu.uuid for gpu in node.client.status().gpus]
    session = node.client.create(gpus=[GpuShare(uuids[1], LIMIT)])
    tenant = node.tenant(session, extra={"CUDA_VISIBLE_DEVICES": "1"})
    tenant.fill("linear", LIMIT, times=1)
    assert tenant.take("linear", 512) == OUT_OF_MEMORY
    node.expect_used(0, LIMIT)


def test_a_new_shell_loses_the_environment_so_the_limit_is_gone(node: Node) -> None:
    """Without the variables the preload still denies: it never means no limit. (A container has a file as well.)"""
    session = node.session(LIMIT)
    gone = {"GPUSLICE_SESSION": "", "GPUSLICE_IPC_SOCK": "", "GPUSLICE_IPC_TOKEN": ""}
    tenant = node.tenant(session, extra=gone)
    assert tenant.take("linear", 512) == OUT_OF_MEMORY


def test_a_tenant_edits_its_own_limit(node: Node) -> None:
    """The page with the limit is mapped for reading, and no descriptor of it is left."""
    tenant = node.tenant(node.session(LIMIT))
    maps = Path(f"/proc/{tenant.process.pid}/maps").read_text()
    assert {line.split()[1] for line in maps.splitlines() if line.endswith("/control")} == {"r--s"}
    descriptors = Path(f"/proc/{tenant.process.pid}/fd")
    assert not [link for link in descriptors.iterdir() if link.readlink().name == "control"]


def test_host_pid_unknown_inside_a_container_so_the_limit_is_off(node: Node) -> None:
    """In a PID namespace of its own a process is 1; the agent knows it by the host's number."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a PID namespace")
    session = node.session(LIMIT)
    process = node.start(["unshare", "--pid", "--fork", "--kill-child", node.tenant_program], session)
    tenant = Tenant(process, greets=False)
    assert tenant.read() == "ready 1 0"
    assert tenant.ask("device 0") == "0"
    tenant.fill("linear", LIMIT, times=1)
    (seen,) = node.client.show(session.id).processes
    assert seen.pid > 1
    assert Path(f"/proc/{seen.pid}/cmdline").read_bytes().startswith(bytes(node.tenant_program))
    assert tenant.take("linear", 512) == OUT_OF_MEMORY
    process.kill()
    eventually(lambda: node.held(session) == [0], "given back")


def test_a_clean_exit_uncounts_a_survivor(node: Node) -> None:
    session = node.session(LIMIT)
    survivor = node.tenant(session)
    survivor.fill("linear", PIECE, times=2)
    for _ in range(10):
        other = node.tenant(session)
        other.fill("linear", PIECE, times=6)
        assert other.take("linear", 512) == OUT_OF_MEMORY
        assert other.close() == ""
        eventually(lambda: node.held(session) == [2 * PIECE], "only the survivor's")
        assert survivor.take("linear", LIMIT - PIECE) == OUT_OF_MEMORY
