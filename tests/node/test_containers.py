"""What a container gets is enough: its programs see their slice and get no more, whatever they and their root do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from gpuslice.node.claims import cdi
from tests.interposer.conftest import build
from tests.interposer.node import Tenant
from tests.node.container import Container
from tests.node.kubelet import Share
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpuslice.node.admin.messages import SessionView
    from tests.interposer.conftest import Build
    from tests.node.kubelet import TestClaim
    from tests.node.kubernetes_node import KubernetesNode

__all__ = ["build"]  # a fixture of tests/interposer

MIB = 1 << 20
OUT_OF_MEMORY = 2


class RunContainer(Protocol):
    """The fixture `container`: one that has these claims."""

    def __call__(self, *claims: TestClaim) -> Container: ...


@pytest.fixture
def container(node: KubernetesNode) -> Iterator[RunContainer]:
    made: list[Container] = []

    def make(*claims: TestClaim) -> Container:
        prepared = [device for claim in claims for device in node.kubelet.prepared(claim)]
        devices = [name for device in prepared for name in device.cdi_device_ids]
        made.append(Container([node.edits(name) for name in dict.fromkeys(devices)]))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def program(build: Build) -> Path:
    return build("tenant.c", "-ldl")


@pytest.fixture
def small(node: KubernetesNode) -> TestClaim:
    return node.claim("small", Share(node.device(), memory="64Mi"))


@pytest.fixture
def other(node: KubernetesNode) -> SessionView:
    """A larger session, of another claim."""
    large = node.claim("large", Share(node.device(), memory="1Gi"))
    node.kubelet.prepared(large)
    (session,) = node.sessions(large)
    return session


def test_a_program_sees_its_slice_and_is_refused_one_byte_more(
    container: RunContainer, small: TestClaim, program: Path
) -> None:
    tenant = container(small).tenant(program)
    assert tenant.info() == (64 * MIB, 64 * MIB)
    assert tenant.take("linear", 64 * MIB) == 0
    assert tenant.take("linear", 1) == OUT_OF_MEMORY
    assert tenant.close() == ""


def test_all_programs_of_the_container_share_it(container: RunContainer, small: TestClaim, program: Path) -> None:
    inside = container(small)
    first = inside.tenant(program)
    assert first.take("linear", 40 * MIB) == 0
    # As `kubectl exec` does: another process of the container, with an environment of its own.
    second = inside.tenant(program)
    assert second.info() == (24 * MIB, 64 * MIB)
    assert second.take("linear", 25 * MIB) == OUT_OF_MEMORY
    first.close()
    eventually(lambda: second.info()[0] == 64 * MIB)


def test_containers_that_share_a_claim_share_its_slice(
    container: RunContainer, small: TestClaim, program: Path
) -> None:
    one, other = container(small).tenant(program), container(small).tenant(program)
    assert one.take("linear", 40 * MIB) == 0
    assert other.take("linear", 40 * MIB) == OUT_OF_MEMORY


def test_the_environment_decides_nothing(
    container: RunContainer, small: TestClaim, other: SessionView, program: Path
) -> None:
    tenant = container(small).tenant(
        program,
        GPUSLICE_SESSION=other.id,
        GPUSLICE_IPC_TOKEN=other.token,
        GPUSLICE_IPC_SOCK=other.socket,
        LD_PRELOAD="",
    )
    assert tenant.info()[1] == 64 * MIB


def test_shells_and_other_programs_do_not_notice(container: RunContainer, small: TestClaim) -> None:
    done = container(small).run("sh", "-c", "echo to stdout; echo to stderr >&2; exec ls /usr/lib/gpuslice-container")
    assert (done.returncode, done.stderr) == (0, "to stderr\n")
    assert done.stdout.split() == ["to", "stdout", "ld.so.preload", "libgpuslice-nvml.so", "libgpuslice.so"]


def test_a_restarted_agent_is_found_by_running_containers(
    node: KubernetesNode, container: RunContainer, small: TestClaim, program: Path
) -> None:
    inside = container(small)
    before = inside.tenant(program)
    assert before.take("linear", 10 * MIB) == 0
    node.agent.kill()
    node.agent.start()
    after = inside.tenant(program)
    assert after.info() == (54 * MIB, 64 * MIB)
    assert before.take("linear", 54 * MIB) == 0
    assert after.take("linear", 1) == OUT_OF_MEMORY


def test_a_container_with_two_claims_has_both_slices(
    node: KubernetesNode, container: RunContainer, program: Path
) -> None:
    claims = [
        node.claim(f"claim-{index}", Share(node.device(index), memory=f"{64 * (index + 1)}Mi")) for index in range(2)
    ]
    inside = container(*claims)
    first, second = inside.tenant(program, device=0), inside.tenant(program, device=1)
    assert {first.info()[1], second.info()[1]} == {64 * MIB, 128 * MIB}
    for tenant in (first, second):
        size = tenant.info()[1]
        assert tenant.take("linear", size) == 0
        assert tenant.take("linear", 1) == OUT_OF_MEMORY
    for claim in claims:
        (session,) = node.sessions(claim)
        assert len(session.processes) == 2
        assert session.gpus[0].held_bytes == session.gpus[0].limit_bytes
    first.close()
    eventually(lambda: sum(session.gpus[0].held_bytes for session in node.sessions()) < 192 * MIB)
    assert second.take("linear", 1) == OUT_OF_MEMORY


def test_of_two_claims_on_one_gpu_the_larger_counts(
    node: KubernetesNode, container: RunContainer, program: Path
) -> None:
    claims = [node.claim(f"claim-{size}", Share(node.device(), memory=f"{size}Mi")) for size in (64, 96, 32)]
    tenant = container(*claims).tenant(program)
    assert tenant.info()[1] == 96 * MIB
    assert tenant.take("linear", 97 * MIB) == OUT_OF_MEMORY


def test_a_mig_container_has_its_partition_only(node: KubernetesNode, container: RunContainer, program: Path) -> None:
    claim = node.claim("mig", Share(f"{node.device()}-mig-1g-5gb-0"))
    tenant = container(claim).tenant(program)
    assert tenant.info()[1] == 4864 * MIB
    assert tenant.take("linear", 4865 * MIB) == OUT_OF_MEMORY


# ---- what the container's root may try ----


@pytest.mark.parametrize(
    "attempt",
    [
        "rm -f /etc/ld.so.preload",
        "echo > /etc/ld.so.preload",
        "mv /etc/ld.so.preload /etc/elsewhere",
        "umount /etc/ld.so.preload",
        "mount -o remount,rw /etc/ld.so.preload",
        "mount --bind /etc/passwd /etc/ld.so.preload",
        "for file in /etc/gpuslice/sessions/*; do echo GPUSLICE_SESSION=x > $file; done",
        "rm -rf /etc/gpuslice/sessions",
        "rm -f /etc/gpuslice/agent/agent.sock",
        "mv /etc/gpuslice/agent /etc/gpuslice/elsewhere",
        "cp /bin/true /usr/lib/gpuslice-container/libgpuslice.so",
    ],
)
def test_root_of_the_container_cannot_take_the_limit_away(
    container: RunContainer, small: TestClaim, program: Path, attempt: str
) -> None:
    inside = container(small)
    script = f'({attempt}) 2>/dev/null && exit 3; exec "{program}"'
    tenant = Tenant(inside.start("sh", "-c", script), greets=False)
    assert tenant.read().startswith("ready"), f"{attempt} was allowed"
    assert tenant.ask("device 0") == "0"
    assert tenant.info()[1] == 64 * MIB
    assert tenant.take("linear", 65 * MIB) == OUT_OF_MEMORY


@pytest.mark.parametrize("moved", ["/etc/gpuslice/sessions", "/etc/gpuslice/agent", "/etc/gpuslice"])
def test_a_container_that_moves_the_files_out_of_sight_gets_nothing(
    container: RunContainer, small: TestClaim, other: SessionView, program: Path, moved: str
) -> None:
    """A mount cannot be moved, what is above it can."""
    script = f'mv {moved} /etc/elsewhere; exec "{program}"'
    process = container(small).start(
        "sh", "-c", script,
        GPUSLICE_SESSION=other.id, GPUSLICE_IPC_TOKEN=other.token, GPUSLICE_IPC_SOCK=other.socket,
    )  # fmt: skip
    tenant = Tenant(process, greets=False)
    assert tenant.read().startswith("ready")
    assert tenant.ask("device 0") == "0"
    assert tenant.take("linear", 65 * MIB) == OUT_OF_MEMORY


def test_a_session_file_of_its_own_making_is_passed_over(
    container: RunContainer, small: TestClaim, other: SessionView, program: Path
) -> None:
    forged = cdi.session_text(other.id, other.token, "agent.sock").decode()
    script = f'printf "%s" "$FORGED" > /etc/gpuslice/sessions/aaaa && exec "{program}"'
    tenant = Tenant(container(small).start("sh", "-c", script, FORGED=forged), greets=False)
    assert tenant.read().startswith("ready")
    assert tenant.ask("device 0") == "0"
    assert tenant.info()[1] == 64 * MIB


def test_the_agents_own_sockets_and_tokens_are_not_in_the_container(container: RunContainer, small: TestClaim) -> None:
    done = container(small).run("find", "/etc/gpuslice", "-not", "-type", "d")
    names = {line.rpartition("/")[2] for line in done.stdout.splitlines()}
    assert names == {f"{small.uid}-gpu", "agent.sock"}
