"""The checkpoint comes back as it was written, from this version and from older ones."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.node.claims import checkpoint
from gpuslice.node.claims.checkpoint import (
    Checkpoint,
    PartitionPlace,
    Phase,
    PreparedClaim,
    PreparedDevice,
    PreparedResourceClaim,
    PreparedSession,
    PreparedSlots,
)
from gpuslice.node.errors import AgentError
from gpuslice.system.files import write_durably

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

names = st.text(min_size=1, max_size=20)
devices = st.builds(
    PreparedDevice,
    request=names,
    pool=names,
    device=names,
    share_id=st.none() | names,
    uuid=names,
    model=names,
    limit_bytes=st.integers(0, 2**48),
    core_percent=st.integers(0, 100),
    partition=st.none() | st.builds(PartitionPlace, names, names, st.integers(0, 7)),
    admin=st.booleans(),
)
common = {
    "uid": names,
    "phase": st.sampled_from(Phase),
    "created": st.floats(0, 1e10),
    "namespace": names,
    "pod": names,
    "devices": st.lists(devices, max_size=3),
    "sessions": st.lists(st.builds(PreparedSession, request=names, id=names, token=names), max_size=3),
}
resource_claims = st.builds(PreparedResourceClaim, name=names, pod_uid=names, **common)
slots = st.builds(
    PreparedSlots,
    resource=names,
    slots=st.lists(names, max_size=3),
    slots_per_gpu=st.integers(0, 1000),
    container=names,
    **common,
)
prepared = resource_claims | slots


def claim(uid: str = "1", phase: Phase = Phase.PREPARED) -> PreparedResourceClaim:
    return PreparedResourceClaim(
        namespace="team", name="gpu", uid=uid, phase=phase, created=1.5, devices=[], sessions=[]
    )


@given(prepared)
def test_every_claim_comes_back(written: PreparedClaim) -> None:
    assert checkpoint.decode(checkpoint.encode(written)) == written


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[], Checkpoint]:
    """The checkpoint of a state folder, as the next agent finds it."""
    return lambda: Checkpoint(tmp_path / "prepared", tmp_path / "claims.json")


def test_what_was_put_is_there_for_the_next_agent(opened: Callable[[], Checkpoint]) -> None:
    first = opened()
    first.put(claim("1"))
    first.put(claim("2"))
    first.begin_unpreparing("1")
    first.begin_unpreparing("3")
    first.drop("2")
    first.drop("3")
    assert opened().claims == first.claims == {"1": claim("1", Phase.UNPREPARING)}
    first.put(claim("1", Phase.PREPARING))
    assert opened().claims == {"1": claim("1", Phase.PREPARING)}


def test_a_full_disk_changes_nothing(opened: Callable[[], Checkpoint], tmp_path: Path) -> None:
    kept = opened()
    kept.put(claim("1"))
    (tmp_path / "prepared" / ".2.json.new").mkdir()  # nothing can be written there now
    with pytest.raises(OSError, match="Is a directory"):
        kept.put(claim("2"))
    assert kept.claims == opened().claims == {"1": claim("1")}


def test_giving_back_writes_nothing(opened: Callable[[], Checkpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = opened()
    kept.put(claim("1"))

    def full(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_durably", full)
    monkeypatch.setattr(checkpoint, "synchronize", full)
    kept.begin_unpreparing("1")
    assert opened().claims == {"1": claim("1", Phase.UNPREPARING)}
    kept.drop("1")
    assert opened().claims == {}


def test_where_not_even_a_name_finds_room_the_claim_is_dropped_all_the_same(
    opened: Callable[[], Checkpoint], tmp_path: Path
) -> None:
    kept = opened()
    kept.put(claim("1"))
    (tmp_path / "prepared" / "1.unpreparing.json").mkdir()  # no file can have this name
    kept.begin_unpreparing("1")
    assert kept.claims["1"].phase is Phase.UNPREPARING
    (tmp_path / "prepared" / "1.unpreparing.json").rmdir()
    kept.drop("1")
    assert opened().claims == {}


TORN = [b"", b"{", b"[]", b"{}", b'{"version":"2"}', b'{"version":0}', b"\xff", b'{"version":2,"claim":{}}',
        checkpoint.encode(claim("another"))]  # fmt: skip


@pytest.mark.parametrize("content", TORN)
def test_a_torn_file_concerns_its_own_claim_only(
    opened: Callable[[], Checkpoint], tmp_path: Path, content: bytes
) -> None:
    first = opened()
    first.put(claim("1"))
    first.put(claim("2"))
    (tmp_path / "prepared" / "1.json").write_bytes(content)
    for _ in range(2):  # and the next agent knows it still
        found = opened()
        assert found.claims == {"2": claim("2")}
        assert list(found.broken) == ["1"]
    assert (tmp_path / "prepared" / "1.json.broken").read_bytes() == content
    found.put(claim("1"))
    assert (opened().claims, opened().broken) == ({"1": claim("1"), "2": claim("2")}, {})


def test_a_claim_that_is_broken_can_be_dropped(opened: Callable[[], Checkpoint], tmp_path: Path) -> None:
    opened().set_aside(["1"], "lost")
    found = opened()
    assert list(found.broken) == ["1"]
    found.drop("1")
    assert (found.broken, opened().broken, list((tmp_path / "prepared").iterdir())) == ({}, {}, [])


# ---- versions ----


def old_claim(written: PreparedClaim) -> dict[str, Any]:
    """A claim, as versions 1 and 2 wrote it: with the fields of both kinds, and no word for the kind."""
    empty = {"name": "gpu-shared", "pod_uid": "", "slots": [], "resource": "", "slots_per_gpu": 0, "container": ""}
    content: dict[str, Any] = msgspec.to_builtins(written)
    del content["kind"]
    return empty | content


def single_file(*claims: PreparedClaim) -> bytes:
    """All claims, as version 1 wrote them."""
    return msgspec.json.encode({"version": 1, "claims": {each.uid: old_claim(each) for each in claims}})


@given(prepared)
def test_a_claim_of_version_2_becomes_one_of_two_kinds(written: PreparedClaim) -> None:
    if isinstance(written, PreparedSlots) and not written.slots:
        return  # version 2 knew containers by their slots
    old = msgspec.json.encode({"version": 2, "claim": old_claim(written)})
    assert checkpoint.decode(old) == written


def test_the_single_file_of_version_1_is_taken_apart(opened: Callable[[], Checkpoint], tmp_path: Path) -> None:
    claims = [claim("1"), claim("2", Phase.PREPARING), claim("3", Phase.UNPREPARING)]
    (tmp_path / "claims.json").write_bytes(single_file(*claims))
    assert opened().claims == {each.uid: each for each in claims}
    assert not (tmp_path / "claims.json").exists()
    assert opened().claims == {each.uid: each for each in claims}


@pytest.mark.parametrize("killed_after", range(3))
def test_killed_while_it_is_taken_apart(
    opened: Callable[[], Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_after: int
) -> None:
    claims = [claim("1"), claim("2"), claim("3")]
    (tmp_path / "claims.json").write_bytes(single_file(*claims))
    written = 0

    def dying(path: Path, content: bytes) -> None:
        nonlocal written
        if written == killed_after:
            raise KeyboardInterrupt
        written += 1
        write_durably(path, content)

    monkeypatch.setattr(checkpoint, "write_durably", dying)
    with pytest.raises(KeyboardInterrupt):
        opened()
    monkeypatch.setattr(checkpoint, "write_durably", write_durably)
    assert opened().claims == {each.uid: each for each in claims}


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":1}', b'{"version":1,"claims":{"1":{}}}', b"\xff"])
def test_a_torn_single_file_is_set_aside(opened: Callable[[], Checkpoint], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "claims.json").write_bytes(content)
    found = opened()
    assert (found.claims, bool(found.lost)) == ({}, True)
    assert (tmp_path / "claims.json.broken").read_bytes() == content
    assert not opened().lost


def test_an_older_version_is_brought_up_to_date_step_by_step() -> None:
    """As if this version were the third: the first called pods workloads, the second had no phase."""

    def from_first(old: dict[str, Any]) -> dict[str, Any]:
        return {"claim": {**old["claim"], "pod": old["claim"]["workload"]}}

    def from_second(old: dict[str, Any]) -> dict[str, Any]:
        return {"claim": {**old["claim"], "phase": "prepared", "kind": "claim"}}

    entry = {"namespace": "team", "name": "gpu", "uid": "1", "created": 1.5, "devices": [], "sessions": []}
    old = json.dumps({"version": 1, "claim": entry | {"workload": "trainer"}}).encode()
    found = checkpoint.decode(old, version=3, upgrades={1: from_first, 2: from_second})
    assert (found.pod, found.phase) == ("trainer", Phase.PREPARED)


def test_there_is_a_way_from_every_older_version() -> None:
    assert set(checkpoint.UPGRADES) == set(range(1, checkpoint.VERSION))


@pytest.mark.parametrize("name", ["claims.json", "prepared/1.json"])
def test_a_newer_version_is_refused_and_the_remedy_told(
    opened: Callable[[], Checkpoint], tmp_path: Path, name: str
) -> None:
    opened()
    newer = checkpoint.VERSION + 1
    (tmp_path / name).write_text(json.dumps({"version": newer, "claims": {}, "claim": {}}))
    with pytest.raises(AgentError, match=r"newer agent.*run the newer agent, or drain the node"):
        opened()
