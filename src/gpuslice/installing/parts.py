"""Everything that is installed, in an order in which it can be: what others need comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.installing import agent, configuration, controller, definitions, webhook
from gpuslice.installing.objects import metadata, rule
from gpuslice.model import devices
from gpuslice.model.policies import Backend
from gpuslice.policies.schema import GROUP
from gpuslice.quotas.schema import PLURAL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gpuslice.installing.objects import Object
    from gpuslice.installing.options import Options


def objects(options: Options, only: Collection[str] = ()) -> list[Object]:
    """The objects of these parts; without any, of all that the installation needs."""
    wanted = {*(only or (PARTS if options.url is None else _FOR_A_WEBHOOK_OUTSIDE))}
    if wanted & _READERS and (options.url is None or wanted & _READERS != {"webhook"}):
        wanted.add("configuration")
    return [made for name, part in PARTS.items() if name in wanted for made in part(options)]


def _namespace(options: Options) -> list[Object]:
    # The agent is privileged; the others ask for no more than the strictest standard allows.
    security = {"pod-security.kubernetes.io/enforce": "privileged"}
    labels = {"app.kubernetes.io/part-of": "gpuslice", **security}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace, "labels": labels}},
        _critical_pods(options),
    ]


def _critical_pods(options: Options) -> Object:
    """Some providers let pods be critical to a node or the cluster only in namespaces whose quota says how many."""
    critical = {
        "scopeName": "PriorityClass",
        "operator": "In",
        "values": ["system-node-critical", "system-cluster-critical"],
    }
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata("gpuslice-critical-pods", options),
        "spec": {"hard": {"pods": "1G"}, "scopeSelector": {"matchExpressions": [critical]}},
    }


def _definitions(_options: Options) -> list[Object]:
    return [*definitions.all_definitions(), _quota_viewer()]


def _quota_viewer() -> Object:
    """Those who may look at a namespace see its quotas. To write them is for those who answer for the cluster."""
    described = metadata("gpuslice-quota-viewer")
    described["labels"] |= {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": described,
        "rules": [rule(GROUP, [PLURAL], ["get", "list", "watch"])],
    }


def _device_classes(options: Options) -> list[Object]:
    """None where no node offers claims. A whole GPU that a pod asks of no plugin is one of ours, all of its memory."""
    if options.settings.node_backend is Backend.EXTENDED:
        return []
    whole = {devices.GPU_CLASS: {"extendedResourceName": options.settings.whole_resource}}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "gpuslice"}},
            "spec": {"selectors": [{"cel": {"expression": expression}}], **whole.get(name, {})},
        }
        for name, expression in devices.CLASS_SELECTORS.items()
    ]


PARTS: Final[dict[str, Callable[[Options], list[Object]]]] = {
    "namespace": _namespace,
    "crds": _definitions,
    "classes": _device_classes,
    "configuration": configuration.objects,
    "webhook": webhook.objects,
    "controller": controller.objects,
    "agent": agent.objects,
}
#: Their pods do not start without the configuration.
_READERS: Final = frozenset(("webhook", "controller", "agent"))
_FOR_A_WEBHOOK_OUTSIDE: Final = ("namespace", "crds", "webhook")
