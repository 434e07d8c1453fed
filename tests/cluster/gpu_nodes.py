"""Nodes that are nothing but an object with GPUs: enough for the real scheduler to allocate claims and bind pods."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuslice.admission.claims.claim_templates import template_for
from gpuslice.installing import parts
from gpuslice.installing.options import Options
from gpuslice.kube.client import api
from gpuslice.node.dra.publishing import Publisher
from gpuslice.node.dra.resource_slices import build
from gpuslice.node.gpus.policies import GpuPolicies
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuslice.model.slices import Slice
    from gpuslice.node.dra.resource_slices import SliceContent
    from gpuslice.node.gpus.gpu_state import GpuState
    from gpuslice_cluster.clusters import Cluster

_AMOUNTS = {"cpu": "64", "memory": "512Gi", "pods": "500"}


@dataclass
class GpuNode:
    """A node object, and pods that can go nowhere else."""

    cluster: Cluster
    namespace: str
    name: str = field(default_factory=lambda: f"gpus-{secrets.token_hex(4)}")

    def publish(self, states: Sequence[GpuState], policies: GpuPolicies | None = None) -> None:
        """Publishes the GPUs as the agent does, once."""
        self.publish_slices(build(states, policies or GpuPolicies()))

    def publish_slices(self, slices: Sequence[SliceContent]) -> None:
        async def work() -> None:
            async with api.connect(self.cluster.kubeconfig, {}, "test") as connection:
                publisher = Publisher(connection, self.name)
                publisher.publish(slices)
                await publisher.reconcile()

        asyncio.run(work())

    def slices(self) -> list[dict[str, Any]]:
        """The node's ResourceSlices, by name."""
        text = self.cluster.kubectl(
            "get", "resourceslices", f"--field-selector=spec.nodeName={self.name}", "-o", "json"
        )
        found: list[dict[str, Any]] = json.loads(text)["items"]
        return sorted(found, key=lambda item: str(item["metadata"]["name"]))

    def start(self, *slices: Slice, sizes: tuple[int, ...] | None = None) -> list[str]:
        """Makes a pod for each, in this order, and gives their names."""
        names = []
        documents = []
        for given in slices:
            template = template_for(given, sizes)
            names.append(f"pod-{secrets.token_hex(4)}")
            documents += [template.document(self.namespace), self._pod(names[-1], template.name)]
        self._apply(documents)
        return names

    def _pod(self, name: str, template: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.name},
                "tolerations": [{"operator": "Exists"}],  # no kubelet says that the node is alive
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
            },
        }

    def devices(self, *pods: str) -> list[list[str]]:
        """What the claim of each pod was given, once the scheduler has bound the pods."""
        names = [f"pod/{pod}" for pod in pods]
        in_namespace = ("--namespace", self.namespace)
        self.cluster.kubectl("wait", *names, *in_namespace, "--for=condition=PodScheduled", "--timeout=60s")
        found = json.loads(self.cluster.kubectl("get", "pods,resourceclaims", *in_namespace, "-o", "json"))["items"]
        by_name = {(item["kind"], item["metadata"]["name"]): item for item in found}
        claims = [
            by_name["ResourceClaim", status["resourceClaimName"]]
            for pod in pods
            for status in by_name["Pod", pod]["status"]["resourceClaimStatuses"]
        ]
        return [[given["device"] for given in claim["status"]["allocation"]["devices"]["results"]] for claim in claims]

    def device(self, pod: str) -> str:
        ((found,),) = self.devices(pod)
        return found

    def waits(self, pod: str) -> str:
        """Why the pod is not scheduled, once the scheduler has tried."""

        def condition() -> dict[str, str] | None:
            found = self._get("pod", pod)
            assert "nodeName" not in found["spec"], self.devices(pod)
            conditions = found.get("status", {}).get("conditions", ())
            return next((one for one in conditions if one.get("reason") == "Unschedulable"), None)

        eventually(condition, f"{pod} is refused")
        found = condition()
        assert found is not None
        return found["message"]

    def end(self, pod: str) -> None:
        self.cluster.kubectl("delete", "pod", pod, "--namespace", self.namespace, "--grace-period=0", "--force")

    def _get(self, kind: str, name: str) -> dict[str, Any]:
        found = json.loads(self.cluster.kubectl("get", kind, name, "--namespace", self.namespace, "-o", "json"))
        assert isinstance(found, dict)
        return found

    def _apply(self, documents: list[dict[str, Any]]) -> None:
        everything = {"apiVersion": "v1", "kind": "List", "items": documents}
        self.cluster.kubectl("apply", "-f", "-", input=json.dumps(everything))


@contextmanager
def gpu_node(cluster: Cluster, namespace: str) -> Iterator[GpuNode]:
    """A node that is ready, and the classes of its devices. Its tests share a worker (tests/scheduling.py)."""
    node = GpuNode(cluster, namespace)
    node._apply(parts.objects(Options(), ["classes"]))
    document = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}},
    }
    cluster.kubectl("create", "-f", "-", input=json.dumps(document))
    status = {
        "status": {"capacity": _AMOUNTS, "allocatable": _AMOUNTS, "conditions": [{"type": "Ready", "status": "True"}]}
    }
    cluster.kubectl("patch", "node", node.name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    try:
        yield node
    finally:
        # No kubelet of the node ends its pods.
        cluster.kubectl("delete", "pods", "--all", "--namespace", namespace, "--grace-period=0", "--force")
        cluster.kubectl("delete", "node", node.name)
        selector = f"--field-selector=spec.nodeName={node.name}"
        cluster.kubectl("delete", "resourceslices", selector)
