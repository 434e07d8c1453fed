"""The limit is on memory that a tenant reads and cannot write, even as root of its container."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.sessions import page
from tests.node.support import AgentProcess, start_tenant

if TYPE_CHECKING:
    from tests.node.conftest import StartTenant


@pytest.mark.usefixtures("as_root")
def test_root_in_a_mount_namespace_cannot_raise_its_limit(agent: AgentProcess) -> None:
    session = agent.create("1GiB")
    # As a container: namespaces of its own, and no capability over mounts.
    inside = start_tenant(session, wrapper=("unshare", "--mount", "--", "setpriv", "--bounding-set=-sys_admin"))
    try:
        assert inside.status == page.ATTACH_OK
        said = inside.do("rewrite").split(", ")
        assert said[:3] == ["Read-only file system"] * 3
        assert not {"opened", "done"} & set(said)
        assert inside.control()[1] == 1 << 30
    finally:
        inside.close()
    assert agent.client().status().sealed


@pytest.mark.usefixtures("as_root")
def test_root_beside_the_agent_cannot_either(agent: AgentProcess, tenant: StartTenant) -> None:
    said = tenant(agent.create()).do("rewrite")
    assert "Read-only file system" in said
    assert "opened" not in said
    assert "done" not in said


@pytest.mark.usefixtures("as_root")
def test_nothing_is_left_mounted(agent: AgentProcess, tenant: StartTenant) -> None:
    tenant(agent.create())
    assert str(agent.state) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.usefixtures("as_root")
def test_an_agent_without_that_power_says_so_and_serves(new_agent: AgentProcess, tenant: StartTenant) -> None:
    script = 'exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin -- "$@"'
    arguments = ["sh", "-c", script, "sh", *new_agent.arguments()]
    with new_agent.log.open("a") as log:
        new_agent.process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(new_agent.environment)
        )
    assert new_agent.process.stdout is not None
    assert "is ready" in new_agent.process.stdout.readline()
    status = new_agent.client().status()
    assert (status.sealed, status.weakness) == (False, "no read-only mount: Operation not permitted")
    assert "could write their limit" in new_agent.log.read_text()
    session = new_agent.create()
    plain = tenant(session)
    assert plain.status == page.ATTACH_OK
    # Still not by the descriptor itself.
    assert plain.control()[1] == 1 << 30
