"""The state folder: full, read-only, another user's, in use, or with broken files in it."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.errors import AgentError
from gpuslice.node.sessions import page
from gpuslice.node.sessions.page import UNIT
from tests.node.support import AgentProcess
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.node.conftest import StartTenant


@pytest.fixture
def small_disk(new_agent: AgentProcess, as_root: None) -> Iterator[AgentProcess]:
    """An agent whose state folder is on a disk of one MiB."""
    del as_root
    new_agent.state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs", new_agent.state], check=True)
    try:
        yield new_agent
        if new_agent.process is not None and new_agent.process.poll() is None:
            new_agent.stop()
    finally:
        subprocess.run(["umount", new_agent.state], check=True)


def fill(folder: Path) -> Path:
    """Takes all the room there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return filler


def test_a_full_disk_is_told_and_the_others_are_served(small_disk: AgentProcess, tenant: StartTenant) -> None:
    agent = small_disk.start()
    session = agent.create(name="served")
    running = tenant(session)
    running.do("charge", 0, 10 * UNIT)
    filler = fill(agent.state)
    with pytest.raises(AgentError) as refused:
        agent.create(name="late")
    assert refused.value.code == "no_space"
    assert "No space left" in refused.value.message
    assert [path.name for path in (agent.state / "sessions").iterdir()] == ["served"]
    with pytest.raises(AgentError, match="cannot be changed"):
        agent.client().limit("served", "2GiB")
    assert running.control()[1] == 1 << 30
    # Slots, deaths and releases need no room.
    other = tenant(session)
    assert other.status == page.ATTACH_OK
    other.do("charge", 0, 5 * UNIT)
    other.kill()
    eventually(lambda: agent.client().show("served").gpus[0].recovered_bytes == 5 * UNIT)
    agent.kill()
    agent.start()
    assert agent.client().show("served").gpus[0].held_bytes == 10 * UNIT
    agent.client().release("served", force=True)
    filler.unlink()
    assert agent.create(name="late").id == "late"


def test_the_first_slot_of_a_session_needs_no_room_on_the_disk(small_disk: AgentProcess, tenant: StartTenant) -> None:
    agent = small_disk.start()
    session = agent.create()
    fill(agent.state)
    first = tenant(session)
    first.do("charge", 0, 10 * UNIT)
    assert agent.client().show(session.id).gpus[0].held_bytes == 10 * UNIT


@pytest.mark.usefixtures("as_root")
def test_a_disk_that_turns_read_only_is_told(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    sessions = agent.state / "sessions"
    # What an agent that runs meets: what it has open stays writable, everything by name is not.
    subprocess.run(["mount", "--bind", sessions, sessions], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", sessions], check=True)
        with pytest.raises(AgentError) as refused:
            agent.create()
        assert refused.value.code == "read_only"
        with pytest.raises(AgentError, match="Read-only"):
            agent.client().release(session.id)
        assert agent.client().show(session.id).state == "active"
        assert tenant(session).status == page.ATTACH_OK  # what it needs is open already
    finally:
        subprocess.run(["umount", sessions], check=True)
    assert tenant(session).status == page.ATTACH_OK
    agent.client().release(session.id, force=True)


def refusal(agent: AgentProcess, code: int = 1) -> str:
    """What an agent says that does not start."""
    done = subprocess.run(agent.arguments(), check=False, capture_output=True, text=True, env=dict(agent.environment))
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.usefixtures("as_root")
def test_an_agent_on_a_read_only_folder_says_so(small_disk: AgentProcess) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk.state], check=True)
    assert "Read-only file system" in refusal(small_disk)
    assert "--state" in refusal(small_disk)


def test_two_agents_never_share_a_folder(agent: AgentProcess) -> None:
    said = refusal(AgentProcess(agent.command, agent.state))
    assert f"another agent (pid {agent.pid})" in said
    assert agent.client().status().pid == agent.pid


def test_a_folder_that_others_can_write_is_refused(new_agent: AgentProcess) -> None:
    new_agent.state.mkdir()
    new_agent.state.chmod(0o777)
    assert "no other user can write" in refusal(new_agent)


def test_a_path_too_long_for_a_socket_is_told(new_agent: AgentProcess) -> None:
    new_agent.state = new_agent.state / ("x" * 80)
    assert "too long" in refusal(new_agent)


def test_a_metrics_address_that_is_not_one_is_told(new_agent: AgentProcess) -> None:
    new_agent.options = ["--metrics", "nonsense"]
    assert "127.0.0.1:9500" in refusal(new_agent, 2)  # called wrongly


def overwrite(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def replace(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        assert old in content
        (folder / name).write_bytes(content.replace(old, new))

    return change


def remove(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


@pytest.mark.parametrize(
    "damage",
    [
        overwrite("session.json", b""),
        overwrite("session.json", b"{}"),
        overwrite("session.json", b"\xff\x00{"),
        replace("session.json", b'"version": 1', b'"version": 2'),
        replace("session.json", b'"broken"', b'"other"'),
        replace("session.json", b"GPU-1111", b"GPU-?"),
        remove("session.json"),
        overwrite("control", b""),
        overwrite("control", bytes(4096)),
        replace("control", b"GSLPAGE1", b"GSLPAGE2"),
        replace("control", b"broken", b"br0ken"),
        remove("control"),
        overwrite("attached", b"short"),
        overwrite("attached", bytes(1024 + 512 * 16)),
        remove("attached"),
    ],
)
def test_a_broken_session_is_put_aside_and_the_rest_is_served(
    agent: AgentProcess, tenant: StartTenant, damage: Callable[[Path], None]
) -> None:
    agent.create(name="broken")
    whole = agent.create(name="whole")
    running = tenant(whole)
    running.do("charge", 0, 10 * UNIT)
    agent.kill()
    damage(agent.state / "sessions" / "broken")
    agent.start()
    assert [session.id for session in agent.client().list()] == ["whole"]
    assert agent.client().show("whole").gpus[0].held_bytes == 10 * UNIT
    assert (agent.state / "sessions" / "broken.broken-1").is_dir()
    (line,) = agent.audit("quarantine")
    assert (line["session_id"], line["error_code"]) == ("broken", "broken_session")
    assert line["reason"]
    # The name is free again, and a second restart leaves everything as it is.
    assert agent.create(name="broken").id == "broken"
    agent.kill()
    agent.start()
    assert {session.id for session in agent.client().list()} == {"broken", "whole"}


def test_an_agent_that_has_too_few_descriptors_puts_no_session_aside(agent: AgentProcess) -> None:
    made = {agent.create(name=f"session-{number}").id for number in range(60)}
    agent.kill()
    agent.limit_descriptors = 80
    with contextlib.suppress(subprocess.TimeoutExpired):  # whether it starts at all does not matter here
        subprocess.run(agent.arguments(), env=dict(agent.environment), capture_output=True, timeout=10, check=False)
    agent.limit_descriptors = None
    agent.start()
    assert {session.id for session in agent.client().list()} == made
    assert not agent.audit("quarantine")


def test_what_an_agent_left_half_done_is_finished(agent: AgentProcess) -> None:
    agent.create(name="kept")
    agent.create(name="gone")
    agent.kill()
    sessions = agent.state / "sessions"
    (sessions / ".new-half").mkdir()
    (sessions / ".new-half" / "control").touch()
    (sessions / "gone").rename(sessions / ".released-gone-0123456789abcdef")
    (agent.state / "agent.sock").unlink()
    (agent.state / "admin.sock").unlink()
    (agent.state / "admin.sock").touch()
    agent.start()
    assert [path.name for path in sessions.iterdir()] == ["kept"]
    assert [session.id for session in agent.client().list()] == ["kept"]


def test_a_broken_totals_file_is_replaced(agent: AgentProcess) -> None:
    agent.kill()
    (agent.state / "totals").write_bytes(b"\xff" * 300)
    agent.start()
    assert "counters start at zero" in agent.log.read_text()
