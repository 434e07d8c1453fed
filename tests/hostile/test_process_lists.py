"""NVML inside a session names the session's own processes, and no others that share the GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interposer.conftest import build, make_node
from tests.native.inside import python_path
from tests.node.conftest import as_root
from tests.node.support import read_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.node.admin.messages import SessionView
    from tests.interposer.conftest import MakeNode
    from tests.interposer.node import Node

Lists = dict[str, Any]
__all__ = ["as_root", "build", "make_node"]  # fixtures of tests/interposer and tests/node

PROGRAM = str(Path(__file__).with_name("nvml_lists.py"))
#: Starts a program of the session and the lists in a PID namespace; $1 is the program.
NAMESPACE = """
mkfifo "$2/wait" "$2/said"
"$1" < "$2/wait" > "$2/said" &
exec 3> "$2/wait" 4< "$2/said"
read line <&4; echo "device 0" >&3; read line <&4
echo | "$3" "$4" $!
"""


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node("1xT4", context_bytes=1 << 20)


def lists(node: Node, session: SessionView | None, *pids: int, between: Callable[[], None] | None = None) -> Lists:
    """What NVML says; `between` is called when the program has attached and has not asked yet."""
    process = node.start([sys.executable, PROGRAM, *map(str, pids)], session, python_path())
    assert read_line(process) == "ready"
    if between is not None:
        between()
    output, errors = process.communicate("\n", timeout=60)
    assert process.returncode == 0, errors
    found: Lists = json.loads(output)
    return found


def test_a_tenant_sees_its_own_processes_and_no_others(node: Node) -> None:
    session, other = node.session(), node.session()
    mine = [node.tenant(session) for _ in range(2)]
    theirs = node.tenant(other)
    outside = lists(node, None, theirs.process.pid)
    compute = "nvmlDeviceGetComputeRunningProcesses_v3"
    all_pids = {tenant.process.pid for tenant in (*mine, theirs)}
    assert set(outside["lists"][compute]) == all_pids  # the machine's own view has all

    inside = lists(node, session, theirs.process.pid, mine[0].process.pid)
    own = {tenant.process.pid for tenant in mine}
    for name, pids in inside["lists"].items():
        assert set(pids) <= own | set(inside["lists"]["self"]), name
    for version in ("", "_v2", "_v3"):
        assert set(inside["lists"][f"nvmlDeviceGetComputeRunningProcesses{version}"]) == own
    assert inside["names"][str(theirs.process.pid)] == ""
    assert "tenant" in inside["names"][str(mine[0].process.pid)]


def test_without_an_agent_a_process_sees_only_itself(node: Node) -> None:
    session = node.session()
    mine = node.tenant(session)
    assert node.agent is not None
    inside = lists(node, session, between=node.agent.kill)
    for name, pids in inside["lists"].items():
        assert mine.process.pid not in pids, name
    node.agent.start()


@pytest.mark.usefixtures("as_root")
def test_in_a_pid_namespace_processes_have_the_numbers_that_it_knows(node: Node, tmp_path: Path) -> None:
    session, other = node.session(), node.session()
    node.tenant(other)
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", NAMESPACE, "sh"]
    command += [str(node.tenant_program), str(tmp_path), sys.executable, PROGRAM]
    process = node.start(command, session, python_path())
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    inside = json.loads(output.removeprefix("ready\n"))
    ((number, name),) = inside["names"].items()
    assert inside["lists"]["nvmlDeviceGetComputeRunningProcesses_v3"] == [int(number)]
    assert int(number) < 100
    assert "tenant" in name
