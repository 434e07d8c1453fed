"""Sessions on a disk that takes its time: changes of one session come one after another, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
import structlog

from gpuslice.model.sessions import SessionState
from gpuslice.node.audit import Audit
from gpuslice.node.disk import DiskThread
from gpuslice.node.errors import AgentError
from gpuslice.node.sessions import record as records
from gpuslice.node.sessions import registry as registry_module
from gpuslice.node.sessions.record import GpuRecord, SessionRecord, read_record
from gpuslice.node.sessions.registry import Registry
from gpuslice.node.sessions.state_folder import StateFolder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

GPU = "GPU-11111111-2222-3333-4444-555555555555"


def record(session_id: str = "") -> SessionRecord:
    gpus = [GpuRecord(GPU, 1 << 30)]
    return SessionRecord(
        id=session_id, name="", token=GPU, owner_uid=0, owner_gid=0, gpus=gpus, created=1.0, boot_id="", grace_seconds=1
    )


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Registry]:
    state, log, disk = StateFolder(folder / "state"), structlog.get_logger(), DiskThread()
    state.prepare()
    registry = Registry(state, Audit(None, log), log, asyncio.get_running_loop(), disk, max_descriptors=1024)
    registry.load()
    try:
        yield registry
    finally:
        disk.close()
        registry.close()


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
