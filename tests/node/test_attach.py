"""Attaching: who gets a slot, and when it is free again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.sessions import page
from gpuslice.node.sessions.page import UNIT
from tests.native.inside import python_path
from tests.node.support import GPU, OTHER_GPU, AgentProcess, clean_environment
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.node.conftest import StartTenant

NOBODY = 65534
WRONG = "x"

# Forks as many processes as it is told, which attach one after the other and stay; prints how each was answered.
CROWD = """
import os, sys
from tests.node.tenant import Tenant
path, session, token, count = sys.argv[1:]
children = []
for _ in range(int(count)):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        tenant = Tenant(path, session, token)
        answer = tenant.attach()
        os.write(write, f"{answer.status} {answer.slot}\\n".encode())
        os.read(0, 1)
        os._exit(0)
    os.close(write)
    children.append(child)
    print(os.read(read, 64).decode().strip(), flush=True)
    os.close(read)
print("done", flush=True)
sys.stdin.read()
for child in children:
    os.waitpid(child, 0)
"""


def test_processes_get_the_lowest_free_slots(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    tenants = [tenant(session) for _ in range(3)]
    assert [each.slot for each in tenants] == [0, 1, 2]
    assert tenants[0].control()[2] == 3
    tenants[1].kill()
    eventually(lambda: len(agent.client().show(session.id).processes) == 2)
    assert tenant(session).slot == 1
    shown = agent.client().show(session.id).processes
    assert [process.slot for process in shown] == [0, 1, 2]
    assert shown[0].pid == tenants[0].pid
    assert "tenant.py" in shown[0].command


def test_what_a_tenant_holds_is_shown(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create("2GiB", gpus=[GPU, OTHER_GPU], name="two")
    first, second = tenant(session), tenant(session)
    first.do("charge", 0, 1000 * UNIT)
    first.do("charge", 1, 500 * UNIT)
    second.do("charge", 1, 250 * UNIT)
    second.do("deny", 1)
    second.do("peak", 1, 750 * UNIT)
    shown = agent.client().show("two")
    assert [(gpu.held_bytes, gpu.peak_bytes) for gpu in shown.gpus] == [(1000 * UNIT, 0), (750 * UNIT, 750 * UNIT)]
    assert [process.held_bytes for process in shown.processes] == [[1000 * UNIT, 500 * UNIT], [0, 250 * UNIT]]
    assert (shown.allocations, shown.denials) == (3, 1)


def test_what_a_tenant_keeps_as_spare_is_not_held(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    thrifty = tenant(session)
    thrifty.do("charge", 0, 1000 * UNIT)
    thrifty.do("keep", 0, 600 * UNIT)
    assert agent.client().show(session.id).gpus[0].held_bytes == 400 * UNIT
    thrifty.kill()
    eventually(lambda: agent.client().show(session.id).gpus[0].recovered_bytes == 400 * UNIT)


def test_tenants_are_told_when_there_is_less_room(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create("1GiB")
    watching = tenant(session)
    epochs = [watching.control()[4]]
    for limit in ("2GiB", "2GiB", "1GiB"):
        agent.client().limit(session.id, limit)
        epochs.append(watching.control()[4])
    assert [later - before for before, later in pairwise(epochs)] == [0, 0, 1]
    agent.kill()  # between the limit and the word about it, as far as the next agent knows
    agent.start()
    assert watching.control()[4] > epochs[-1]


def test_a_killed_process_gives_its_bytes_back(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    survivor, victim = tenant(session), tenant(session)
    survivor.do("charge", 0, 100 * UNIT)
    victim.do("charge", 0, 1 << 20)
    victim.do("deny", 0)
    victim.kill()
    eventually(lambda: agent.client().show(session.id).gpus[0].held_bytes == 100 * UNIT)
    gpu = agent.client().show(session.id).gpus[0]
    assert (gpu.recovered_bytes, gpu.allocations, gpu.denials) == (1 << 20, 2, 1)
    (line,) = agent.audit("detach")
    assert (line["pid"], line["bytes"], line["reason"]) == (victim.pid, 1 << 20, "ended")
    # The survivor need not sum the cells above its own any more.
    assert survivor.control()[2] == 1


def test_attaching_again_gives_the_old_slot_back(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    again = tenant(session)
    for count in (1, 2, 3):
        again.do("charge", 0, 5 * UNIT)
        assert agent.client().show(session.id).allocations == count
        assert again.do("attach") == "0"
    shown = agent.client().show(session.id)
    assert (len(shown.processes), shown.allocations, shown.gpus[0].recovered_bytes) == (1, 3, 15 * UNIT)
    again.kill()
    eventually(lambda: not agent.client().show(session.id).processes)
    assert agent.client().show(session.id).allocations == 3


def test_exec_gives_the_slot_back(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    runner = tenant(session)
    runner.do("charge", 0, 77 * UNIT)
    runner.say("exec")
    eventually(lambda: not agent.client().show(session.id).processes)
    assert runner.process.poll() is None
    assert agent.audit("detach")[0]["reason"] == "left the session"
    assert agent.client().show(session.id).gpus[0].recovered_bytes == 77 * UNIT


def test_a_program_that_closes_its_descriptors_keeps_its_slot(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    tidy = tenant(session)
    tidy.do("charge", 0, 7 * UNIT)
    tidy.do("close")
    assert tenant(session).slot == 1
    assert agent.client().show(session.id).gpus[0].held_bytes == 7 * UNIT
    tidy.kill()
    eventually(lambda: agent.client().show(session.id).gpus[0].held_bytes == 0)


def test_exec_is_noticed_without_a_connection(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    quiet = tenant(session)
    quiet.do("close")
    quiet.say("exec")
    eventually(lambda: not agent.client().show(session.id).processes)
    assert quiet.process.poll() is None


def test_an_observer_takes_no_slot(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    reader = tenant(session)
    reader.do("charge", 0, 9 * UNIT)
    assert reader.do("observe") == str(page.NO_SLOT)
    shown = agent.client().show(session.id)
    assert [(process.slot, process.held_bytes) for process in shown.processes] == [(0, [9 * UNIT])]


@pytest.mark.parametrize("token", ["", "wrong", "x" * 128])
def test_a_wrong_token_is_denied_and_told(agent: AgentProcess, tenant: StartTenant, token: str) -> None:
    session = agent.create()
    stranger = tenant(session, token=token)
    assert (stranger.status, stranger.slot) == (page.ATTACH_DENIED, -1)
    assert "token" in stranger.message
    (line,) = agent.audit("attach")
    assert (line["result"], line["error_code"], line["pid"]) == ("denied", "wrong_token", stranger.pid)
    assert tenant(session).status == page.ATTACH_OK


def test_the_agent_s_token_is_not_a_session_s(agent: AgentProcess, tenant: StartTenant) -> None:
    token = (agent.state / "token").read_text().strip()
    assert tenant(agent.create(), token=token).status == page.ATTACH_DENIED


@pytest.mark.usefixtures("as_root")
def test_a_stranger_s_uid_needs_the_session_s_token(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    denied = tenant(session, token=WRONG, user=NOBODY)
    assert denied.status == page.ATTACH_DENIED
    assert [(line["uid"], line["result"]) for line in agent.audit("attach")] == [(NOBODY, "denied")]
    # Containers run as any user: with the token, they are the session's tenants.
    allowed = tenant(session, user=NOBODY)
    assert allowed.status == page.ATTACH_OK
    allowed.do("charge", 0, 3 * UNIT)
    assert agent.client().show(session.id).gpus[0].held_bytes == 3 * UNIT


def test_an_unknown_session_is_told(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    for name in ("absent", "../state", "x" * 63, "x" * 64, "Ünknown"):
        session.id = name
        assert tenant(session).status == page.ATTACH_UNKNOWN


def test_a_full_session_says_so_and_has_room_again(agent: AgentProcess, tenant: StartTenant) -> None:
    session = agent.create()
    arguments = [session.socket, session.id, session.token, str(page.SLOTS + 1)]
    crowd = subprocess.Popen(
        [sys.executable, "-c", CROWD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(**python_path()),
    )
    with crowd:
        try:
            assert crowd.stdout is not None
            answers = [crowd.stdout.readline().split() for _ in range(page.SLOTS + 1)]
            assert answers[:-1] == [[str(page.ATTACH_OK), str(slot)] for slot in range(page.SLOTS)]
            assert answers[-1][0] == str(page.ATTACH_FULL)
            children = [process.pid for process in agent.client().show(session.id).processes]
            os.kill(children[300], signal.SIGKILL)
            eventually(lambda: len(agent.client().show(session.id).processes) == page.SLOTS - 1)
            assert tenant(session).slot == 300
        finally:
            crowd.kill()
            assert crowd.stdin is not None
            crowd.stdin.close()
    eventually(lambda: len(agent.client().show(session.id).processes) == 1)
