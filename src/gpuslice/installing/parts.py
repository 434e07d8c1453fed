"""Everything that is installed, in an order in which it can be: what others need comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.installing import agent, configuration, controller, definitions, webhook
from gpuslice.model import devices

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
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace, "labels": labels}}]


def _definitions(_options: Options) -> list[Object]:
    return [definitions.slice_policies()]


def _device_classes(_options: Options) -> list[Object]:
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "gpuslice"}},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
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
