"""Processes that pretend to be another tenant's: they are never counted against it, and it never ends for them."""

from __future__ import annotations

import sys
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.node.sessions import page
from tests.native.inside import python_path
from tests.node.conftest import (
    agent,
    as_root,
    claim_server,
    folder,
    make_kubernetes_node,
    new_agent,
    node,
    tenant,
)
from tests.node.kubelet import Share
from tests.node.support import read_line, start_tenant
from tests.node.test_breach import User, gpu_agent, machine, user
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuslice.node.admin.messages import SessionView
    from tests.node.kubernetes_node import KubernetesNode
    from tests.node.support import AgentProcess
    from tests.node.test_breach import StartUser
    from tests.support import SimulatedMachine

__all__ = [
    "agent", "as_root", "claim_server", "folder", "gpu_agent", "machine", "make_kubernetes_node", "new_agent", "node",
    "tenant", "user",
]  # fixtures of tests/node  # fmt: skip

pytestmark = pytest.mark.usefixtures("as_root")

MIB = 1 << 20
NOBODY = "65534"
PROGRAM = str(Path(__file__).parents[1] / "node" / "gpu_user.py")
#: Has a child of root's on the GPU, and becomes another user, who makes a session that ends what breaches it.
OWNER = """
import os, subprocess, sys
from pathlib import Path
from gpuslice.node.admin.client import AgentClient
state, program, user = sys.argv[1:]
os.environ["GPUSLICE_IPC_TOKEN"] = Path(state, "token").read_text().strip()
child = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "ready\\n"
os.setgid(int(user))
os.setuid(int(user))
session = AgentClient.discover(Path(state), os.environ).create(
    "1GiB", gpus=["0"], on_breach="kill", owner_pid=os.getpid()
)
print(session.id, child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""
#: Asks in every way on connections whose process has ended, and once on its own: prints the answers' statuses.
ASKING = """
import os, socket, sys
from gpuslice.node.sessions import page
path, session, token = sys.argv[1:]
def ask(connection, flags):
    request = page.Attach(
        magic=page.ATTACH_MAGIC, version=page.VERSION, flags=flags, session=session.encode(), token=token.encode()
    )
    connection.sendall(bytes(request))
    return page.Attached.from_buffer_copy(connection.recv(page.ATTACHED_BYTES, socket.MSG_WAITALL)).status
statuses = []
for flags in (0, page.ATTACH_OBSERVER, page.ATTACH_PROCESSES):
    connection = socket.socket(socket.AF_UNIX)
    child = os.fork()
    if child == 0:
        connection.connect(path)
        os._exit(0)
    os.waitpid(child, 0)
    statuses.append(ask(connection, flags))
own = socket.socket(socket.AF_UNIX)
own.connect(path)
print(statuses, ask(own, page.ATTACH_OBSERVER))
"""
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


@contextmanager
def running(machine: SimulatedMachine, *wrapper: str, **environment: str) -> Iterator[User]:
    """A process that uses the GPU behind gpuslice's back."""
    started = User(machine.start([*wrapper, sys.executable, PROGRAM], **python_path(), **environment))
    try:
        yield started
    finally:
        started.close()


@contextmanager
def cgroup(path: str) -> Iterator[tuple[str, ...]]:
    """A cgroup, and what starts a program in it. What of the path was not there goes again."""
    mounted = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    base = Path(next(line[1] for line in mounted if line[2] == "cgroup2"))
    made = base / path
    made.mkdir(parents=True)
    try:
        yield ("sh", "-c", f'echo $$ > {made}/cgroup.procs; exec "$@"', "sh")
    finally:
        eventually(lambda: not (made / "cgroup.procs").read_text())
        with suppress(OSError):  # others may use what is above
            for folder in (made, *made.parents):
                if folder == base:
                    break
                folder.rmdir()


def looked_for_a_while(agent: AgentProcess) -> None:
    """Until the agent has looked at NVML several times."""
    before = agent.client().status().uptime_seconds
    eventually(lambda: agent.client().status().uptime_seconds > before + 3)


def breaches(agent: AgentProcess, session: SessionView) -> int:
    return agent.client().show(session.id).breaches


def test_a_forged_environment_of_another_user_frames_no_session(
    gpu_agent: AgentProcess, machine: SimulatedMachine, user: StartUser
) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    victim = user(session)
    victim.do("charge", 200 * MIB)
    victim.do("take", 200 * MIB)
    with running(machine, *AS_NOBODY, GPUSLICE_SESSION=session.id) as stranger:
        stranger.do("take", 2000 * MIB)
        looked_for_a_while(gpu_agent)
        assert breaches(gpu_agent, session) == 0
        assert victim.process.poll() is None
        assert stranger.process.poll() is None
    assert gpu_agent.audit("kill") == []


def test_a_forged_environment_of_root_in_a_container_frames_no_session(
    gpu_agent: AgentProcess, machine: SimulatedMachine, user: StartUser
) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    victim = user(session)
    with running(machine, "unshare", "--mount", GPUSLICE_SESSION=session.id) as stranger:
        stranger.do("take", 2000 * MIB)
        looked_for_a_while(gpu_agent)
        assert breaches(gpu_agent, session) == 0
        assert victim.process.poll() is None
        assert stranger.process.poll() is None


def test_a_pod_s_session_is_never_proven_by_an_environment(node: KubernetesNode) -> None:
    claim = node.claim("trainer", Share(node.device(), memory="64Mi"))
    node.kubelet.prepared(claim)
    (session,) = node.sessions(claim)
    with running(node.machine, GPUSLICE_SESSION=session.id) as stranger:
        stranger.do("take", 200 * MIB)
        looked_for_a_while(node.agent)
        assert breaches(node.agent, session) == 0


def test_a_cgroup_named_after_a_pod_is_not_the_pod_s(node: KubernetesNode) -> None:
    pod = str(uuid.uuid4())
    claim = node.claim("trainer", Share(node.device(), memory="64Mi"), pod_uid=pod)
    node.kubelet.prepared(claim)
    (session,) = node.sessions(claim)
    other = f"user.slice/{uuid.uuid4()}/kubepods/pod{pod}/abc"
    with cgroup(other) as inside, running(node.machine, *inside) as stranger:
        stranger.do("take", MIB)
        looked_for_a_while(node.agent)
        assert breaches(node.agent, session) == 0
    nested = f"kubepods/pod{uuid.uuid4()}/abc/kubepods/pod{pod}"
    with cgroup(nested) as inside, running(node.machine, *inside) as stranger:
        stranger.do("take", MIB)
        looked_for_a_while(node.agent)
        assert breaches(node.agent, session) == 0
    # The pod's own processes are found, though none ever attached.
    with cgroup(f"kubepods/besteffort/pod{pod}/abc") as inside, running(node.machine, *inside) as rogue:
        rogue.do("take", MIB)
        eventually(lambda: breaches(node.agent, session) == 1)
        assert node.agent.audit("breach")[0]["pid"] == rogue.pid


def test_a_stolen_token_is_worth_nothing_in_another_pod(node: KubernetesNode) -> None:
    pod, other = str(uuid.uuid4()), str(uuid.uuid4())
    claim = node.claim("trainer", Share(node.device(), memory="64Mi"), pod_uid=pod)
    node.kubelet.prepared(claim)
    (session,) = node.sessions(claim)
    with cgroup(f"kubepods/besteffort/pod{other}/thief") as inside:
        thief = start_tenant(session, wrapper=inside)
        thief.close()
        assert (thief.status, thief.message) == (page.ATTACH_DENIED, "the session is another pod's")
    with cgroup(f"kubepods/besteffort/pod{pod}/own") as inside:
        own = start_tenant(session, wrapper=inside)
        own.close()
        assert own.status == page.ATTACH_OK


def test_a_connection_of_a_process_that_is_gone_is_worth_nothing(node: KubernetesNode) -> None:
    pod, other = str(uuid.uuid4()), str(uuid.uuid4())
    claim = node.claim("trainer", Share(node.device(), memory="64Mi"), pod_uid=pod)
    node.kubelet.prepared(claim)
    (session,) = node.sessions(claim)
    gone = [page.ATTACH_BROKEN] * 3
    for place, own in ((other, page.ATTACH_DENIED), (pod, page.ATTACH_OK)):
        with cgroup(f"kubepods/besteffort/pod{place}/asking") as inside:
            command = [*inside, sys.executable, "-c", ASKING, session.socket, session.id, session.token]
            assert node.machine.run(command, extra=python_path()).stdout == f"{gone} {own}\n"


def test_a_user_s_session_neither_counts_nor_ends_a_process_of_another_user(
    gpu_agent: AgentProcess, machine: SimulatedMachine
) -> None:
    """As with sudo in a shell: the shell is the user's, owns a session, and its child is root's."""
    gpu_agent.client()
    command = [sys.executable, "-c", OWNER, str(gpu_agent.state), PROGRAM, NOBODY]
    owner = machine.start(command, **python_path())
    try:
        session_id, child = read_line(owner).split()
        looked_for_a_while(gpu_agent)
        shown = gpu_agent.client().show(session_id)
        assert (shown.owner.uid, shown.on_breach, shown.breaches) == (int(NOBODY), "kill", 0)
        assert gpu_agent.audit("kill") == []
        assert Path(f"/proc/{child}/status").exists()
    finally:
        owner.communicate()


def test_the_process_that_grew_is_ended_and_not_the_largest(gpu_agent: AgentProcess, user: StartUser) -> None:
    session = gpu_agent.client().create("1GiB", gpus=["0"], on_breach="kill")
    honest, cheat = user(session), user(session)
    honest.do("charge", 500 * MIB)
    honest.do("take", 500 * MIB)
    eventually(lambda: gpu_agent.client().show(session.id).gpus[0].overhead_bytes == 200 * MIB)
    cheat.do("take", 400 * MIB)
    assert cheat.process.wait(30) == -9
    assert honest.process.poll() is None
