"""Installs gpuslice into a cluster as a user would, with the image made here and the simulated machine's GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuslice.installing import parts
from gpuslice.installing.options import AGENT, Options
from gpuslice.simulator import machine as machines
from gpuslice_cluster.clusters import Cluster, ClusterError
from gpuslice_cluster.control_plane import WEBHOOK_AUTHORITY
from gpuslice_cluster.images.catalogue import GPUSLICE_IMAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuslice.simulator.machine import Machine

#: The image's name stays the same; pods are started anew when this says that its content does not.
_CONTENT: Final = "gpuslice.io/image-content"
_SECONDS_TO_ROLL_OUT: Final = 120
_DEVICE_CLASSES: Final = "resource.k8s.io/v1"


def install(cluster: Cluster, machine: str, content: str, node_backend: str, say: Callable[[str], None]) -> None:
    """Installs or updates gpuslice, and waits until it is ready. Raises ClusterError with the logs of what is not."""
    authority = (cluster.folder / WEBHOOK_AUTHORITY / "ca.crt").read_text()
    said = {"gpus": {"backend": node_backend}} if node_backend != "auto" else {}
    options = Options(image=GPUSLICE_IMAGE, client_authority=authority, said=said)
    objects = _adapted(_of_known_kinds(cluster, parts.objects(options)), machines.find(machine), content)
    documents = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}).decode()
    say("installing gpuslice")
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", input=documents)
    for item in objects:
        if "template" in item.get("spec", {}):
            _wait_for(cluster, item, say)


def _of_known_kinds(cluster: Cluster, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without device classes where the API server has no claims: it is too old for them."""
    try:
        cluster.kubectl("get", "--raw", f"/apis/{_DEVICE_CLASSES}")
    except ClusterError:
        return [item for item in objects if item["apiVersion"] != _DEVICE_CLASSES]
    return objects


def _adapted(objects: list[dict[str, Any]], machine: Machine, content: str) -> list[dict[str, Any]]:
    for item in objects:
        template = item.get("spec", {}).get("template")
        if template is not None:
            template["metadata"].setdefault("annotations", {})[_CONTENT] = content
            if item["metadata"]["name"] == AGENT:
                _put_on_machine(template["spec"], machine)
    return objects


def _put_on_machine(pod: dict[str, Any], machine: Machine) -> None:
    """The agent is to find the simulated driver and the machine: what it has in /dev/shm is not the node's."""
    (container,) = pod["containers"]
    container["env"] += [{"name": name, "value": value} for name, value in machine.environment({}).items()]
    container["volumeMounts"].append({"name": "machine", "mountPath": str(machine.directory)})
    pod["volumes"].append({"name": "machine", "hostPath": {"path": str(machine.directory), "type": "Directory"}})


def _wait_for(cluster: Cluster, workload: dict[str, Any], say: Callable[[str], None]) -> None:
    name = workload["metadata"]["name"]
    within = f"--namespace={workload['metadata']['namespace']}"
    say(f"waiting for {name}")
    try:
        kind = workload["kind"].lower()
        cluster.kubectl("rollout", "status", f"{kind}/{name}", within, f"--timeout={_SECONDS_TO_ROLL_OUT}s")
    except ClusterError as error:
        labels = workload["spec"]["selector"]["matchLabels"]
        selector = f"--selector={','.join(f'{key}={value}' for key, value in labels.items())}"
        raise ClusterError(f"{error}\n{_why(cluster, within, selector)}") from None


def _why(cluster: Cluster, within: str, selector: str) -> str:
    pods = cluster.kubectl("get", "pods", within, selector, "--output=wide")
    events = cluster.kubectl("get", "events", within, "--field-selector=type=Warning")
    try:
        logs = cluster.kubectl("logs", within, selector, "--all-containers", "--prefix", "--tail=15")
    except ClusterError as error:  # none has started
        logs = str(error)
    return f"{pods}\n{events}\n{logs}"
