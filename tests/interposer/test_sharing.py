"""One limit for all processes of a session, one per GPU, and the same numbers wherever they are asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.admin.messages import GpuShare
from tests.interposer.node import MIB, OUT_OF_MEMORY
from tests.native.building import ROOT
from tests.native.inside import python_path
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.interposer.conftest import Build, MakeNode
    from tests.interposer.node import Node

LIMIT = 64 * MIB
PIECE = 8 * MIB


def test_all_processes_of_a_session_share_one_limit(node: Node) -> None:
    session = node.session(LIMIT)
    tenants = [node.tenant(session) for _ in range(4)]
    for tenant in tenants:
        tenant.fill("linear", PIECE, times=1)
        tenant.fill("array-2d", PIECE, times=1)
    assert [tenant.take("linear", 512) for tenant in tenants] == [OUT_OF_MEMORY] * 4
    assert {tenant.info() for tenant in tenants} == {(0, LIMIT)}
    assert tenants[0].give("free", 0) == 0
    tenants[3].fill("async", PIECE, times=1)
    assert node.held(session) == [LIMIT]
    node.expect_used(LIMIT)


def test_what_some_freed_is_wholly_there_for_another(node: Node) -> None:
    """Each keeps some of what it freed for itself: it counts as free, and disturbs no other."""
    session = node.session(128 * MIB)
    tenants = [node.tenant(session) for _ in range(8)]
    for _ in range(3):
        for tenant in tenants:
            for block in tenant.fill("linear", MIB, times=4):
                assert tenant.give("free", block) == 0
        assert node.held(session) == [0]
        for tenant in tenants:
            assert tenant.info() == (128 * MIB, 128 * MIB)
        for tenant in tenants:
            (all_of_it,) = tenant.fill("linear", 128 * MIB, times=1)
            assert tenant.info() == (0, 128 * MIB)
            assert tenants[tenant is tenants[0]].take("linear", 1) == OUT_OF_MEMORY
            assert tenant.give("free", all_of_it) == 0
    assert node.client.show(session.id).gpus[0].peak_bytes == 128 * MIB
    assert node.client.show(session.id).allocations == 3 * 8 * (4 + 1)
    node.expect_used(0)


def test_threads_that_free_what_others_allocated_lose_nothing(node: Node, build: Build) -> None:
    session = node.session(LIMIT)
    driver = node.machine.machine.libraries / "libcuda.so.1"
    done = node.run([build(ROOT / "native" / "tests" / "test_threads.c", driver)], session)
    assert done.stdout.endswith(" 0 failed\n"), done.stdout
    eventually(lambda: node.client.show(session.id).processes == [], "it has ended")
    view = node.client.show(session.id)
    assert (view.allocations, view.denials, view.gpus[0].peak_bytes) == (6 * (20 * 200 + 1), 6, LIMIT)
    assert view.gpus[0].recovered_bytes == 0


def test_what_a_process_freed_is_not_its_own_above_a_lowered_limit(node: Node) -> None:
    session = node.session(128 * MIB)
    first, second = node.tenant(session), node.tenant(session)
    first.fill("linear", 64 * MIB, times=1)
    (block,) = second.fill("linear", MIB, times=1)
    assert second.give("free", block) == 0
    node.client.limit(session.id, 64 * MIB)
    assert second.take("linear", MIB) == OUT_OF_MEMORY
    node.client.limit(session.id, 65 * MIB)
    assert second.take("linear", MIB) == 0


def test_sessions_do_not_see_each_other(node: Node) -> None:
    first, second = node.session(LIMIT), node.session(2 * LIMIT)
    one, other = node.tenant(first), node.tenant(second)
    one.fill("linear", LIMIT, times=1)
    assert other.info() == (2 * LIMIT, 2 * LIMIT)
    other.fill("linear", 2 * LIMIT, times=1)
    assert (node.held(first), node.held(second)) == ([LIMIT], [2 * LIMIT])


def test_a_limit_changed_while_the_program_runs_holds_from_the_next_allocation_on(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    tenant.fill("linear", LIMIT, times=1)
    node.client.limit(session.id, LIMIT + PIECE)
    tenant.fill("linear", PIECE, times=1)
    node.client.limit(session.id, PIECE)
    assert tenant.take("linear", 512) == OUT_OF_MEMORY
    assert tenant.info() == (0, PIECE)
    assert tenant.give("free", 0) == 0
    assert tenant.info() == (0, PIECE)


@pytest.mark.parametrize(("visible", "first"), [("0,1", 0), ("1", 1), ("1,0", 1), ("uuid of 1", 1)], ids=str)
def test_gpus_are_told_apart_by_uuid_whatever_their_numbers_are(visible: str, first: int, make_node: MakeNode) -> None:
    node = make_node("2xT4")
    uuids = [gpu.uuid for gpu in node.client.status().gpus]
    session = node.client.create(gpus=[GpuShare(uuids[0], LIMIT), GpuShare(uuids[1], 2 * LIMIT)])
    limits = {gpu.uuid: gpu.limit_bytes for gpu in session.gpus}
    tenant = node.tenant(session, extra={"CUDA_VISIBLE_DEVICES": visible.replace("uuid of 1", uuids[1])})
    limit = limits[uuids[first]]
    assert tenant.info() == (limit, limit)
    assert tenant.ask("total") == f"0 {limit}"
    tenant.fill("linear", limit // 2, times=1)
    tenant.fill("own-pool", limit // 2, times=1)
    assert tenant.take("linear", 512) == OUT_OF_MEMORY
    expected = [0, 0]
    expected[first] = limit
    node.expect_used(*expected)
    assert [gpu.held_bytes for gpu in node.client.show(session.id).gpus] == expected


def test_one_process_has_a_limit_on_each_gpu(make_node: MakeNode) -> None:
    node = make_node("2xT4")
    uuids = [gpu.uuid for gpu in node.client.status().gpus]
    session = node.client.create(gpus=[GpuShare(uuids[0], LIMIT), GpuShare(uuids[1], 2 * LIMIT)])
    tenant = node.tenant(session)
    tenant.fill("linear", LIMIT, times=1)
    assert tenant.ask("device 1") == "0"
    tenant.fill("default-pool", 2 * LIMIT, times=1)
    assert tenant.take("physical", 2 * MIB) == OUT_OF_MEMORY
    node.expect_used(LIMIT, 2 * LIMIT)
    assert node.held(session) == [LIMIT, 2 * LIMIT]


def test_a_gpu_that_the_session_has_no_share_of_gives_nothing(make_node: MakeNode) -> None:
    node = make_node("2xT4")
    uuids = [gpu.uuid for gpu in node.client.status().gpus]
    tenant = node.tenant(node.client.create(gpus=[GpuShare(uuids[0], LIMIT)]), device=1)
    for kind in ("linear", "async", "default-pool", "own-pool", "physical", "array-2d", "graph"):
        assert tenant.take(kind, 2 * MIB) == OUT_OF_MEMORY, kind
    assert node.used() == [0, 0]
    errors = tenant.close().splitlines()
    assert len(errors) == 1
    assert "no share of the GPU" in errors[0]


# ---- imports ----


def test_memory_opened_from_another_process_is_its_owners_to_pay_for(node: Node) -> None:
    session = node.session(LIMIT)
    owner, other = node.tenant(session), node.tenant(session)
    owner.fill("linear", LIMIT, times=1)
    code, handle = owner.ask("export 0").split()
    assert code == "0"
    assert other.ask(f"open {handle}") == "0"
    assert node.held(session) == [LIMIT]
    assert other.give("close", 0) == 0
    assert node.held(session) == [LIMIT]
    assert owner.give("free", 0) == 0
    assert node.held(session) == [0]


def test_physical_memory_that_is_imported_is_not_charged_twice(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    tenant.fill("shareable", LIMIT, times=1)
    assert tenant.do("import") == 0
    assert node.held(session) == [LIMIT]
    node.expect_used(LIMIT)
    assert [tenant.give("release", block) for block in (0, 1)] == [0, 0]
    assert node.held(session) == [0]
    node.expect_used(0)


# ---- the same numbers everywhere ----

NVML = """
import pynvml as n
n.nvmlInit()
device = n.nvmlDeviceGetHandleByIndex(0)
print(n.nvmlDeviceGetCount())
for version in ({}, {"version": n.nvmlMemory_v2}):
    memory = n.nvmlDeviceGetMemoryInfo(device, **version)
    print(memory.total, memory.used, memory.free)
"""


def test_memory_info_nvml_and_the_agent_agree(make_node: MakeNode) -> None:
    node = make_node("2xT4")
    uuid = node.client.status().gpus[1].uuid
    session = node.client.create(gpus=[GpuShare(uuid, LIMIT)])
    tenant = node.tenant(session, device=1)
    tenant.fill("linear", 3 * PIECE, times=1)
    assert [tenant.give("free", block) for block in tenant.fill("linear", 512, times=3)] == [0] * 3
    assert tenant.info() == (LIMIT - 3 * PIECE, LIMIT)
    assert tenant.ask("total") == f"0 {LIMIT}"
    seen = node.run([sys.executable, "-c", NVML], session, python_path())
    memory = f"{LIMIT} {3 * PIECE} {LIMIT - 3 * PIECE}"
    assert seen.stdout.splitlines() == ["1", memory, memory], seen.stderr
    assert node.held(session) == [3 * PIECE]
    node.expect_used(0, 3 * PIECE)


def test_what_the_driver_takes_for_itself_is_the_agents_to_find_and_counts(make_node: MakeNode) -> None:
    """A context takes memory that no call asked for by name."""
    node = make_node("1xT4", context_bytes=10 * MIB)
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    eventually(lambda: tenant.info() == (LIMIT - 10 * MIB, LIMIT), "the context's bytes are counted")
    tenant.fill("linear", LIMIT - 10 * MIB, times=1)
    assert tenant.take("linear", 512) == OUT_OF_MEMORY
    node.expect_used(LIMIT)


# ---- processes that become others ----


def test_a_forked_child_has_nothing_of_its_parents_and_crashes_no_process(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    tenant.fill("linear", PIECE, times=1)
    assert tenant.do("fork") == 0
    assert node.held(session) == [PIECE]
    assert tenant.give("free", 0) == 0
    assert node.held(session) == [0]


def test_after_exec_the_old_memory_is_given_back_and_the_program_starts_anew(node: Node) -> None:
    session = node.session(LIMIT)
    tenant = node.tenant(session)
    tenant.fill("linear", LIMIT, times=1)
    greeting = tenant.ask("do exec").split()
    assert greeting == ["ready", str(tenant.process.pid), "0"]
    eventually(lambda: node.held(session) == [0], "what the old program held is given back")
    assert tenant.ask("device 0") == "0"
    eventually(lambda: tenant.take("linear", LIMIT) == 0, "the new program can have it all")
    assert len(node.client.show(session.id).processes) == 1
