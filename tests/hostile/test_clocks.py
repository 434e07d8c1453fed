"""Clocks that jump, and tenants whose clocks are others: what is held is held all the same."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.sessions import page
from tests.interposer.conftest import build, make_node
from tests.interposer.node import MIB, OUT_OF_MEMORY, Tenant
from tests.node.conftest import as_root, folder, new_agent, tenant
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.interposer.conftest import Build, MakeNode
    from tests.interposer.node import Node
    from tests.node.conftest import StartTenant
    from tests.node.support import AgentProcess

__all__ = ["as_root", "build", "folder", "make_node", "new_agent", "tenant"]  # fixtures of the other suites

DAY = 86_400
#: Clocks that do not go back before the machine's start.
OFFSETS = [10 * DAY, -60]


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node("1xT4")


def in_time_namespace(node: Node, offset: int, grace_seconds: float) -> Tenant:
    """A tenant whose CLOCK_MONOTONIC is so many seconds ahead of the machine's."""
    session = node.session(64 * MIB, grace_seconds=grace_seconds)
    command = ["unshare", "--time", "--fork", "--kill-child", f"--monotonic={offset}", str(node.tenant_program)]
    started = Tenant(node.start(command, session), greets=False)
    assert started.read().startswith("ready")
    assert started.ask("device 0") == "0"
    return started


def is_served(tenant: Tenant) -> bool:
    """Whether it gets memory; it gives it back."""
    code = tenant.take("linear", MIB)
    assert code in (0, OUT_OF_MEMORY)
    return code == 0 and tenant.give("free", tenant.blocks - 1) == 0


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_tenant_s_own_clock_says_nothing_about_the_agent(node: Node, offset: int) -> None:
    if time.monotonic() + offset < 0:
        offset = -int(time.monotonic() / 2)
    inside = in_time_namespace(node, offset, 2.0)
    assert is_served(inside)
    assert node.agent is not None
    node.agent.kill()
    # Within the grace it is served; after it nothing is, whatever the tenant's clock says.
    eventually(lambda: not is_served(inside))
    node.agent.start()
    eventually(lambda: is_served(inside))


def test_steps_of_the_clock_end_nothing_and_keep_nothing(
    new_agent: AgentProcess, build: Build, tenant: StartTenant, folder: Path
) -> None:
    clock = folder / "step"
    clock.write_text("0")
    shim = build(Path(__file__).with_name("stepping_clock.c"), "-shared", "-fPIC", "-ldl", name="stepping_clock.so")
    new_agent.environment = {**new_agent.environment, "LD_PRELOAD": str(shim), "STEPPING_CLOCK": str(clock)}
    agent = new_agent.start()
    long, short = agent.create(ttl_seconds=DAY), agent.create(ttl_seconds=4.0)
    held = tenant(long)
    clock.write_text(str(30 * DAY))
    created = agent.create()
    assert created.created > time.time() + 29 * DAY  # the agent's clock did step
    assert tenant(long).status == page.ATTACH_OK
    before = held.control()[3]
    eventually(lambda: held.control()[3] > before)
    assert agent.client().show(long.id).state == "active"
    clock.write_text(str(-30 * DAY))
    eventually(lambda: short.id not in [session.id for session in agent.client().list()])
    assert agent.client().show(long.id).state == "active"
