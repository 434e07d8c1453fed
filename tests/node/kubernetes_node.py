"""A simulated machine whose agent serves a kubelet, and containers on it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuslice.node.claims import cdi
from tests.node.kubelet import NODE, ClaimServer, Kubelet, Share, TestClaim
from tests.node.support import AgentProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpuslice.node.admin.messages import SessionView
    from tests.support import SimulatedMachine

GIB = 1 << 30


@dataclass
class KubernetesNode:
    """The agent is a process of its own; the test is its kubelet and its API server."""

    machine: SimulatedMachine
    folder: Path
    agent: AgentProcess
    api: ClaimServer
    kubelet: Kubelet

    @property
    def cdi_folder(self) -> Path:
        return self.folder / "cdi"

    @property
    def gpus(self) -> list[str]:
        """UUIDs."""
        return [gpu.uuid for gpu in self.agent.client().status().gpus if not gpu.mig]

    def device(self, index: int = 0) -> str:
        """The name under which the GPU is published."""
        return f"gpu-{self.gpus[index].removeprefix('GPU-')[:8].lower()}"

    def claim(self, name: str, *shares: Share, uid: str | None = None, pod_uid: str | None = None) -> TestClaim:
        """A claim that the API server has."""
        uid = uid or f"{abs(hash(name)):08x}"[:8] + "-1111-2222-3333-444444444444"
        of_pod = {} if pod_uid is None else {"pod_uid": pod_uid}
        return self.api.put(TestClaim(name, uid, shares, **of_pod))

    def specs(self) -> dict[str, dict[str, Any]]:
        """The CDI specs, by file name."""
        found = {}
        for path in self.cdi_folder.glob("*.json"):
            with suppress(FileNotFoundError):  # the agent removes one while this looks
                found[path.name] = json.loads(path.read_text())
        return found

    def edits(self, device: str) -> dict[str, Any]:
        """What the container runtime would do for the device, by its qualified name."""
        kind, name = device.split("=")
        for spec in self.specs().values():
            for found in spec["devices"]:
                if (spec["kind"], found["name"]) == (kind, name):
                    return _sum(spec.get("containerEdits", {}), found["containerEdits"])
        raise AssertionError(f"no spec has {device}")

    def sessions(self, claim: TestClaim | None = None) -> list[SessionView]:
        return [
            session
            for session in self.agent.client().list()
            if session.workload is not None and (claim is None or session.workload.claim_uid == claim.uid)
        ]

    def checkpoint(self) -> dict[str, Any]:
        """The claims that are written down, by UID."""
        files = (self.agent.state / "prepared").glob("*.json")
        claims = [json.loads(path.read_text())["claim"] for path in files]
        return {claim["uid"]: claim for claim in claims}

    def leftovers(self) -> list[str]:
        """Everything that there is of any claim."""
        folders = [path.name for path in (self.agent.state / "claims").iterdir()]
        partitions = [path.name for path in (self.agent.state / "partitions").glob("*")]
        sessions = [session.id for session in self.sessions()]
        specs = [name for name in self.specs() if name.startswith("gpu.gpuslice.io")]
        return [*specs, *folders, *sessions, *self.checkpoint(), *partitions]


def make(
    machine: SimulatedMachine, command: Path, folder: Path, api: ClaimServer, more: Sequence[str] = ()
) -> KubernetesNode:
    """The node, with its agent not started yet."""
    options = ["--kubernetes", "--node-name", NODE, "--kubeconfig", str(api.kubeconfig)]
    options += ["--kubelet-dir", str(folder / "kubelet"), "--cdi-dir", str(folder / "cdi"), *more]
    agent = AgentProcess(command, folder / "state", environment=machine.environment(), options=options)
    return KubernetesNode(machine, folder, agent, api, Kubelet(folder / "kubelet"))


def _sum(*edits: dict[str, Any]) -> dict[str, Any]:
    return {key: [entry for edit in edits for entry in edit.get(key, [])] for key in ("env", "mounts")}


def session_path(uid: str, request: str = "gpu") -> str:
    """Where the container finds its session."""
    return f"{cdi.SESSIONS}/{cdi.device_name(uid, request)}"
