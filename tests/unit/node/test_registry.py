"""Sessions on a disk that takes its time: changes of one session come one after another, and none is lost."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import structlog

from gpuslice.model.sessions import SessionState
from gpuslice.node.admin.room import Room
from gpuslice.node.audit import Audit
from gpuslice.node.disk import DiskThread
from gpuslice.node.errors import AgentError
from gpuslice.node.gpus.nvml import GpuInfo
from gpuslice.node.gpus.policies import GpuPolicies, Mode
from gpuslice.node.sessions import record as records
from gpuslice.node.sessions import registry as registry_module
from gpuslice.node.sessions.record import GpuRecord, SessionRecord, read_record
from gpuslice.node.sessions.registry import Promise, Registry
from gpuslice.node.sessions.state_folder import StateFolder
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

GPU = "GPU-11111111-2222-3333-4444-555555555555"
OTHER = "GPU-22222222-2222-3333-4444-555555555555"
PARTITION = "MIG-33333333-2222-3333-4444-555555555555"
MACHINE = [
    GpuInfo("0", GPU, "A", 10 << 30),
    GpuInfo("0:0", PARTITION, "A MIG", 5 << 30, mig=True),
    GpuInfo("1", OTHER, "B", 10 << 30),
]


def record(session_id: str = "") -> SessionRecord:
    gpus = [GpuRecord(GPU, 1 << 30)]
    return SessionRecord(
        id=session_id, name="", token=GPU, owner_uid=0, owner_gid=0, gpus=gpus, created=1.0, boot_id="", grace_seconds=1
    )


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Registry]:
    state, log, disk = StateFolder(folder / "state"), structlog.get_logger(), DiskThread()
    lock = state.prepare()
    registry = Registry(state, Audit(None, log), log, asyncio.get_running_loop(), disk, max_descriptors=1024)
    registry.load()
    try:
        yield registry
    finally:
        disk.close()
        registry.close()
        os.close(lock)


async def test_two_changes_at_a_time_are_both_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as registry:
        session = await registry.create(record("one"), None)
        await asyncio.gather(
            registry.update(session, lambda now: msgspec.structs.replace(now, gpus=[GpuRecord(GPU, 1 << 20)])),
            registry.update(session, lambda now: msgspec.structs.replace(now, state=SessionState.EXPIRED)),
        )
        written = read_record(session.folder / "session.json", "one")
        assert (written.gpus[0].limit_bytes, written.state) == (1 << 20, SessionState.EXPIRED)
        assert session.record == written


async def test_a_change_that_is_under_way_is_finished_before_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, real = threading.Event(), records.write_record

    def slow(folder: Path, content: bytes) -> None:
        go.wait()
        real(folder, content)

    async with opened(tmp_path) as registry:
        session = await registry.create(record("one"), None)
        monkeypatch.setattr(registry_module, "write_record", slow)
        change = asyncio.ensure_future(
            registry.update(session, lambda now: msgspec.structs.replace(now, state=SessionState.EXPIRED))
        )
        release = asyncio.ensure_future(registry.release(session, "test"))
        await asyncio.sleep(0)
        assert not change.done()
        assert session.record.state is SessionState.ACTIVE, "nothing is true before it is on the disk"
        go.set()
        await asyncio.gather(change, release)
        assert (registry.sessions, list((tmp_path / "state" / "sessions").iterdir())) == ({}, [])


@pytest.mark.parametrize("work", ["update", "release"])
async def test_what_is_under_way_when_the_agent_stops_is_the_next_one_s_to_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    go = threading.Event()
    place: Any = registry_module if work == "update" else Registry
    name = "write_record" if work == "update" else "_rename_to_grave"
    real = getattr(place, name)

    def slow(*arguments: Any) -> Any:  # noqa: ANN401 - as what it stands for
        go.wait()
        return real(*arguments)

    async with opened(tmp_path) as registry:
        session = await registry.create(record("one"), None)
        monkeypatch.setattr(place, name, slow)
        if work == "update":
            changing = registry.update(session, lambda now: msgspec.structs.replace(now, state=SessionState.EXPIRED))
        else:
            changing = registry.release(session, "test")
        under_way = asyncio.ensure_future(changing)
        await until(session.changing.locked)
        go.set()  # it is done on the disk before this loop hears of it, and the files are closed meanwhile
    await under_way
    async with opened(tmp_path) as registry:
        found = {each.id: each.record.state for each in registry.sessions.values()}
        assert found == ({"one": SessionState.EXPIRED} if work == "update" else {})
        assert [each.name for each in (tmp_path / "state" / "sessions").iterdir()] == list(found)


async def test_a_caller_that_gives_up_leaves_nothing_half_done(tmp_path: Path) -> None:
    async with opened(tmp_path) as registry:
        creating = asyncio.ensure_future(registry.create(record("one"), None))
        await asyncio.sleep(0)
        creating.cancel()
        await asyncio.wait((creating,))
        other = await registry.create(record("two"), None)
        assert registry.sessions.keys() == {"one", "two"}
        assert other.id == "two"


async def test_a_session_that_is_there_is_not_removed_by_another_that_wants_its_id(tmp_path: Path) -> None:
    async with opened(tmp_path) as registry:
        first = await registry.create(record("one"), None)
        with pytest.raises(AgentError, match="cannot be made"):
            await registry.create(record("one"), None)
        assert registry.sessions == {"one": first}
        assert read_record(first.folder / "session.json", "one") == first.record


async def test_sessions_without_a_name_get_one_each(tmp_path: Path) -> None:
    async with opened(tmp_path) as registry:
        made = await asyncio.gather(*(registry.create(record(), None) for _ in range(8)))
        assert len({session.id for session in made}) == len(registry.sessions) == 8


async def test_what_is_being_made_or_changed_is_promised_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, real = threading.Event(), records.write_record

    def slow(folder: Path, content: bytes) -> None:
        go.wait()
        real(folder, content)

    async with opened(tmp_path) as registry:
        one = await registry.create(record("one"), None)
        assert registry.promises([GPU]) == [Promise("one", "one", 1 << 30)]
        assert registry.promises(["GPU-other"]) == []
        monkeypatch.setattr(registry_module, "write_record", slow)
        grown = asyncio.ensure_future(
            registry.update(one, lambda now: msgspec.structs.replace(now, gpus=[GpuRecord(GPU, 5 << 30)]))
        )
        making = asyncio.ensure_future(registry.create(record("two"), None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [promise.size for promise in registry.promises([GPU])] == [5 << 30, 1 << 30]
        with pytest.raises(
            AgentError, match=r"GPU 0 has 10 GiB, and 6 GiB are promised to one .5 GiB., two .1 GiB.: 4 GiB"
        ):
            Room(registry).check([GpuRecord(GPU, 5 << 30)], MACHINE)
        making.cancel()  # who asked goes; the session is made
        await asyncio.wait((making,))
        assert sum(promise.size for promise in registry.promises([GPU])) == 6 << 30
        go.set()
        await grown
        await registry.create(record("three"), None)
        shrunk = registry.update(one, lambda now: msgspec.structs.replace(now, gpus=[GpuRecord(GPU, 1 << 20)]))
        await shrunk
        assert sum(promise.size for promise in registry.promises([GPU])) == (2 << 30) + (1 << 20)
        with pytest.raises(AgentError, match="cannot be made"):
            await registry.create(record("three"), None)
        assert sum(promise.size for promise in registry.promises([GPU])) == (2 << 30) + (1 << 20), "a failure is none"


async def test_a_gpu_that_the_scheduler_gives_out_has_no_room_for_sessions_by_hand(tmp_path: Path) -> None:
    policies = GpuPolicies(gpus={"1": Mode.RESERVE})
    async with opened(tmp_path) as registry:
        room = Room(registry, offered=lambda gpu: policies.mode_of(gpu.uuid, gpu.index, gpu.model) is not Mode.RESERVE)
        room.check([GpuRecord(OTHER, 10 << 30)], MACHINE)
        for uuid in (GPU, PARTITION):
            with pytest.raises(AgentError, match="GPU 0 is offered to the cluster") as refused:
                room.check([GpuRecord(uuid, 1 << 20)], MACHINE)
            assert (refused.value.code, refused.value.field) == ("offered", "gpus")
        room.check([GpuRecord("GPU-of-no-machine", 10 << 30)], MACHINE)
