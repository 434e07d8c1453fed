"""Killed before any change to the disk while it prepares or unprepares, the next agent makes it right."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.native.inside import python_path
from tests.node.preparer import CLAIM
from tests.node.support import read_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support import Simulated, SimulatedMachine

NOTHING: dict[str, Any] = {
    "phases": {}, "limits": [], "specs": [], "files": [], "folders": [], "partitions": 0, "temporary": [],
}  # fmt: skip


class Preparer:
    """tests/node/preparer.py."""

    def __init__(self, machine: SimulatedMachine, folder: Path) -> None:
        gpus = ",".join(gpu.uuid.decode() for gpu in machine.machine.description().gpus[:2])
        script = Path(__file__).with_name("preparer.py")
        self.process = machine.start([sys.executable, script, folder, gpus], **python_path())

    def run(self, command: str, *, killed_at: int = 0) -> dict[str, Any] | None:
        """What is there afterwards; None if it was killed."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{killed_at} {command}\n")
        self.process.stdin.flush()
        answer = read_line(self.process)
        if killed_at and answer == "killed":
            return None
        found: dict[str, Any] = json.loads(answer)
        return found

    def expect(self, command: str, *expected: dict[str, Any]) -> None:
        """That the node is in one of these states after the command."""
        found = self.run(command)
        assert found is not None
        assert found | {"partitions": len(found["partitions"])} in expected, command


@pytest.fixture
def preparer(simulated: Simulated, folder: Path) -> Iterator[Preparer]:
    preparer = Preparer(simulated("2xA100-40GB"), folder)
    yield preparer
    preparer.process.communicate()


PREPARED: dict[str, Any] = {
    "phases": {CLAIM.uid: "prepared"},
    "limits": [1 << 30, 19968 << 20],
    "specs": [CLAIM.uid],
    "files": ["mig", "share"],
    "folders": [CLAIM.uid],
    "partitions": 1,
    "temporary": [],
}


def test_without_a_crash(preparer: Preparer) -> None:
    preparer.expect("prepare", PREPARED)
    preparer.expect("recover", PREPARED)
    preparer.expect("prepare", PREPARED)
    preparer.expect("unprepare", NOTHING)
    preparer.expect("unprepare", NOTHING)


def test_killed_while_preparing(preparer: Preparer) -> None:
    step = 1
    while preparer.run("prepare", killed_at=step) is None:
        preparer.expect("recover", NOTHING, PREPARED)
        # The kubelet had no answer, so it asks again; or the pod is deleted.
        if step % 2:
            preparer.expect("prepare", PREPARED)
        preparer.expect("unprepare", NOTHING)
        step += 1
    assert step > 15, "there are more steps than that"
    preparer.expect("unprepare", NOTHING)


def test_killed_while_unpreparing(preparer: Preparer) -> None:
    preparer.expect("prepare", PREPARED)
    step = 1
    while preparer.run("unprepare", killed_at=step) is None:
        preparer.expect("recover", NOTHING, PREPARED)
        preparer.expect("unprepare", NOTHING)
        preparer.expect("prepare", PREPARED)
        step += 1
    assert step > 8, "there are more steps than that"
    preparer.expect("recover", NOTHING)


def test_killed_while_recovering(preparer: Preparer) -> None:
    assert preparer.run("prepare", killed_at=14) is None
    step = 1
    while preparer.run("recover", killed_at=step) is None:
        step += 1
    preparer.expect("recover", NOTHING)
    preparer.expect("prepare", PREPARED)
