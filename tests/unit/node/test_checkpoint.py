"""The checkpoint comes back as it was written, from this version and from older ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.node import checkpoint
from gpuslice.node.checkpoint import (
    Checkpoint,
    PartitionPlace,
    Phase,
    PreparedClaim,
    PreparedDevice,
    PreparedSession,
)
from gpuslice.node.errors import AgentError

if TYPE_CHECKING:
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
prepared = st.builds(
    PreparedClaim,
    namespace=names,
    name=names,
    uid=names,
    phase=st.sampled_from(Phase),
    created=st.floats(0, 1e10),
    pod=names,
    pod_uid=names,
    devices=st.lists(devices, max_size=3),
    sessions=st.lists(st.builds(PreparedSession, request=names, id=names, token=names), max_size=3),
    slots=st.lists(names, max_size=3),
    resource=names,
    container=names,
)


def claim(uid: str = "1", phase: Phase = Phase.PREPARED) -> PreparedClaim:
    return PreparedClaim(namespace="team", name="gpu", uid=uid, phase=phase, created=1.5, devices=[], sessions=[])


@given(st.lists(prepared, max_size=4))
def test_every_claim_comes_back(claims: list[PreparedClaim]) -> None:
    by_uid = {each.uid: each for each in claims}
    assert checkpoint.decode(checkpoint.encode(by_uid)) == by_uid


def test_what_was_put_is_there_for_the_next_agent(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    first = Checkpoint(path)
    first.put(claim("1"))
    first.put(claim("2"))
    first.put(claim("1", Phase.UNPREPARING))
    first.drop("2")
    first.drop("3")
    assert Checkpoint(path).claims == {"1": claim("1", Phase.UNPREPARING)}


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    kept = Checkpoint(path)
    kept.put(claim("1"))
    (tmp_path / ".claims.json.new").mkdir()  # nothing can be written there now
    with pytest.raises(OSError, match="Is a directory"):
        kept.put(claim("2"))
    assert kept.claims == Checkpoint(path).claims == {"1": claim("1")}


def test_an_older_version_is_brought_up_to_date_step_by_step() -> None:
    """As if this version were the third: the first called pods workloads, the second had no phase."""

    def from_first(old: dict[str, Any]) -> dict[str, Any]:
        claims = {uid: {**entry, "pod": entry["workload"]} for uid, entry in old["claims"].items()}
        return {"claims": claims}

    def from_second(old: dict[str, Any]) -> dict[str, Any]:
        return {"claims": {uid: {**entry, "phase": "prepared"} for uid, entry in old["claims"].items()}}

    entry = {"namespace": "team", "name": "gpu", "uid": "1", "created": 1.5, "devices": [], "sessions": []}
    old = json.dumps({"version": 1, "claims": {"1": entry | {"workload": "trainer"}}}).encode()
    found = checkpoint.decode(old, version=3, upgrades={1: from_first, 2: from_second})
    assert (found["1"].pod, found["1"].phase) == ("trainer", Phase.PREPARED)


def test_there_is_a_way_from_every_older_version() -> None:
    assert set(checkpoint.UPGRADES) == set(range(1, checkpoint.VERSION))


def test_a_newer_version_is_refused_and_the_remedy_told(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    path.write_text(json.dumps({"version": checkpoint.VERSION + 1, "claims": {}}))
    with pytest.raises(AgentError, match=r"newer agent.*run the newer agent, or drain the node"):
        Checkpoint(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"version":"1"}', b'{"version":0}', b"\xff",
                                     b'{"version":1,"claims":{"1":{}}}'])  # fmt: skip
def test_what_is_no_checkpoint_is_not_guessed_at(content: bytes) -> None:
    with pytest.raises(AgentError, match="is not a checkpoint"):
        checkpoint.decode(content)
