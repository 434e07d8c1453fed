"""Programs that are stopped, hide from a next agent or are surprised by it: the limit holds, and the others go on."""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hostile.test_held_files import HOLDER
from tests.interposer.conftest import build, client, make_node, node
from tests.interposer.node import MIB, OUT_OF_MEMORY, Tenant
from tests.interposer.test_faults import Watch
from tests.native.inside import python_path
from tests.node.conftest import as_root
from tests.node.support import start_tenant
from tests.waiting import eventually

if TYPE_CHECKING:
    import subprocess

    from tests.interposer.conftest import Build
    from tests.interposer.node import Node

__all__ = ["as_root", "build", "client", "make_node", "node"]  # fixtures of tests/interposer and tests/node

LIMIT = 64 * MIB
PROCESSES = 4
STOPS = 40
RESTARTS = 3
LOOKS = 30
_OBSERVER = """
import sys, pynvml as n
n.nvmlInit()
device = n.nvmlDeviceGetHandleByIndex(0)
for line in sys.stdin:
    print(n.nvmlDeviceGetMemoryInfo(device).used, flush=True)
"""


def state(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_processes_stopped_in_the_middle_of_an_allocation_hold_up_no_other(node: Node, build: Build) -> None:
    chance = random.Random(7)  # noqa: S311 - the same every time
    session = node.session(LIMIT)
    program = build(Path(__file__).with_name("allocating.c"), node.machine.machine.libraries / "libcuda.so.1")
    started = [node.start([program, str(number)], session) for number in range(PROCESSES)]
    tenants = [Tenant(process, greets=False) for process in started]
    with Watch(node) as watch:
        for _ in range(STOPS):
            stopped = chance.randrange(PROCESSES)
            started[stopped].send_signal(signal.SIGSTOP)
            eventually(lambda: state(started[stopped]) == "T", "it is stopped")  # noqa: B023 - called at once
            for number, other in enumerate(tenants):
                if number != stopped:
                    assert other.read() == "on"
            started[stopped].send_signal(signal.SIGCONT)
        # Ended while it is stopped, it is cleared as any other.
        started[0].send_signal(signal.SIGSTOP)
        eventually(lambda: state(started[0]) == "T")
        started[0].kill()
        eventually(lambda: len(node.client.show(session.id).processes) == PROCESSES - 1)
        assert tenants[1].read() == "on"
    assert LIMIT // 4 < watch.most <= LIMIT
    for process in started:
        process.kill()
    eventually(lambda: node.held(session) == [0])
    node.tenant(session).fill("linear", LIMIT, times=1)


def test_a_program_that_hides_its_cells_from_the_next_agent_gets_no_more_and_its_memory_counts(node: Node) -> None:
    session = node.session(LIMIT)
    hiding = node.tenant(session)
    hiding.fill("linear", LIMIT // 2, times=1)
    assert hiding.do("hide-cells") == 0
    assert node.agent is not None
    node.agent.kill()
    node.agent.start()
    eventually(lambda: node.agent is not None and node.agent.audit("replace_cells"), "the search ends")
    assert hiding.take("linear", 512) == OUT_OF_MEMORY
    other = node.tenant(session)
    eventually(lambda: other.take("linear", MIB) == 0, "the session is served")
    assert other.take("linear", LIMIT // 2) == OUT_OF_MEMORY
    assert hiding.give("free", 0) == 0
    eventually(lambda: other.take("linear", LIMIT // 2) == 0, "what it gave back")
    assert "did not find this process's part of the session" in hiding.close()


def test_memory_of_a_program_that_hides_its_cells_counts_over_any_number_of_restarts(node: Node) -> None:
    session = node.session(LIMIT)
    hiding = node.tenant(session)
    hiding.fill("linear", LIMIT // 2, times=1)
    assert hiding.do("hide-cells") == 0
    others: list[Tenant] = []
    assert node.agent is not None
    for restart in range(RESTARTS):
        node.agent.kill()
        node.agent.start()
        eventually(lambda: node.agent is not None and node.agent.audit("replace_cells"), "the first search ends")
        others.append(node.tenant(session))
        eventually(lambda: others[-1].take("linear", MIB) == 0, "the session is served")
        for _ in range(LOOKS):  # the agent meanwhile looks for processes that left the session
            assert [other.take("linear", LIMIT // 2) for other in others] == [OUT_OF_MEMORY] * len(others), restart
            time.sleep(0.1)
        assert hiding.take("linear", 512) == OUT_OF_MEMORY
        assert hiding.process.pid in [process.pid for process in node.client.show(session.id).processes]
    assert hiding.give("free", 0) == 0
    eventually(lambda: others[0].take("linear", LIMIT // 2) == 0, "what it gave back")


@pytest.mark.usefixtures("as_root")
def test_a_lease_on_the_control_page_gives_no_session_its_limit_again(node: Node) -> None:
    session = node.session(LIMIT, grace_seconds=2)
    before = node.tenant(session)
    before.fill("linear", LIMIT // 2, times=1)
    holder = start_tenant(session, program=HOLDER)
    try:
        assert node.agent is not None
        node.agent.kill()
        assert holder.do("lease") == "leased"
        node.agent.start()
        assert [line["session_id"] for line in node.agent.audit("replace_control")] == [session.id]
        after = node.tenant(session)
        eventually(lambda: after.take("linear", MIB) == 0, "the session is served again")
        assert before.take("linear", MIB) == OUT_OF_MEMORY
        assert after.take("linear", LIMIT // 2) == OUT_OF_MEMORY
        assert before.give("free", 0) == 0
        eventually(lambda: after.take("linear", LIMIT // 2) == 0, "what it gave back")
    finally:
        holder.close()


def test_an_observer_follows_the_session_to_its_new_cells(node: Node) -> None:
    session = node.session(LIMIT)
    observer = Tenant(node.start([sys.executable, "-c", _OBSERVER], session, python_path()), greets=False)
    first = node.tenant(session)
    first.fill("linear", 8 * MIB, times=1)
    eventually(lambda: int(observer.ask("")) == 8 * MIB)
    assert node.agent is not None
    node.agent.kill()
    first.kill()  # the last that had them
    node.agent.start()
    second = node.tenant(session)
    second.fill("linear", 16 * MIB, times=1)
    eventually(lambda: int(observer.ask("")) == 16 * MIB, "the observer's look at the new cells")
