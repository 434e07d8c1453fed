"""The audit log: what is in it, and that nothing about it stops the agent."""

from __future__ import annotations

import os
import signal
import subprocess
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.sessions.page import UNIT
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.node.conftest import StartTenant
    from tests.node.support import AgentProcess


def test_a_session_s_life_is_in_the_audit_log(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create(name="life")
    process = tenant(session)
    process.do("charge", 0, 10 * UNIT)
    process.kill()
    eventually(lambda: agent.audit("detach"))
    agent.client().release("life")
    lines = agent.audit()
    assert [line["operation"] for line in lines] == ["create", "attach", "detach", "release"]
    for line in lines:
        assert {"time", "operation", "session_id", "pid", "uid", "bytes", "result", "error_code"} <= line.keys()
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
        assert (line["session_id"], line["result"], line["error_code"]) == ("life", "ok", None)
    assert (lines[0]["bytes"], lines[0]["uid"]) == (1 << 30, os.getuid())
    assert (lines[2]["pid"], lines[2]["bytes"]) == (process.pid, 10 * UNIT)
    assert session.token not in agent.audit_log.read_text()
    assert agent.audit_log.stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_moved_away_is_made_anew(agent: AgentProcess) -> None:
    agent.create(name="one")
    old = agent.audit_log.with_suffix(".1")
    agent.audit_log.rename(old)
    agent.create(name="two")
    assert [line["session_id"] for line in agent.audit()] == ["two"]
    assert '"one"' in old.read_text()
    assert '"two"' not in old.read_text()


def test_a_file_that_was_emptied_is_written_from_its_start(agent: AgentProcess) -> None:
    agent.create(name="one")
    os.truncate(agent.audit_log, 0)
    agent.create(name="two")
    assert [line["session_id"] for line in agent.audit()] == ["two"]


def test_sighup_opens_the_file_again(agent: AgentProcess) -> None:
    agent.audit_log.unlink()
    os.kill(agent.pid, signal.SIGHUP)
    eventually(agent.audit_log.exists)
    agent.create(name="one")
    assert [line["session_id"] for line in agent.audit()] == ["one"]


@pytest.mark.usefixtures("as_root")
def test_a_full_disk_loses_lines_and_says_how_many(new_agent: AgentProcess, folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], check=True)
    try:
        log = disk / "audit.jsonl"
        new_agent.options = ["--audit-log", str(log)]
        agent = new_agent.start()
        (disk / "filler").write_bytes(b"x" * 12_288)
        for _ in range(40):
            agent.create()
        written = log.read_text()
        assert written.endswith("\n")
        (disk / "filler").unlink()
        agent.create(name="after")
        *_, lost, last = log.read_text().splitlines()
        assert '"operation":"audit","result":"lost"' in lost
        assert '"after"' in last
        assert len(agent.client().list()) == 41
        agent.stop()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_stranger_who_knocks_does_not_fill_the_log(agent: AgentProcess) -> None:
    from gpuslice.node.admin.client import AgentClient
    from gpuslice.node.errors import AgentError

    with AgentClient(agent.client().path, "wrong") as stranger:
        for _ in range(300):
            with pytest.raises(AgentError):
                stranger.list()
    assert 1 <= len(agent.audit("list")) < 200
