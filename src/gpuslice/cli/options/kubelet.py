"""The options of an agent that serves a kubelet."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gpuslice.cli.run import preload
from gpuslice.model import devices
from gpuslice.model.policies import Backend

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def kubelet_options(function: Callable[..., _T]) -> Callable[..., _T]:
    """Gives the command what to serve the kubelet with, as its argument `kubernetes`; None without --kubernetes."""

    @functools.wraps(function)
    def gathered(
        *,
        kubernetes: bool,
        kubeconfig: Path | None,
        node_name: str | None,
        kubelet_dir: Path,
        cdi_dir: Path,
        backend: str,
        remove_slices_on_exit: bool,
        metrics_access: str,
        **others: Any,  # noqa: ANN401 - what the command itself declares
    ) -> _T:
        offers = {name: others.pop(name) for name in _OFFERS}
        if not kubernetes:
            return function(kubernetes=None, **others)
        from gpuslice.node.kubernetes import KubernetesSettings
        from gpuslice.node.usage.metrics_access import MetricsAccess

        libraries = preload.library_folder()
        settings = KubernetesSettings(
            node=node_name or os.environ.get("NODE_NAME") or socket.gethostname().lower(),
            libraries=tuple(libraries / name for name in preload.LIBRARIES),
            kubelet_folder=kubelet_dir.absolute(),
            cdi_folder=cdi_dir.absolute(),
            kubeconfig=kubeconfig,
            backend=Backend(backend),
            remove_slices_on_exit=remove_slices_on_exit,
            metrics_access=MetricsAccess(metrics_access),
            **_offers(**offers),
        )
        return function(kubernetes=settings, **others)

    command: Callable[..., _T] = gathered
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _offers(
    *,
    gpu_policies: Path | None,
    gpu_policy: tuple[str, ...],
    slots_per_gpu: int,
    shared_resource: str,
    whole_resource: str,
) -> dict[str, Any]:
    """What the node's GPUs are offered as."""
    from gpuslice.node.gpus import policies
    from gpuslice.node.slots.backend import ExtendedSettings

    rules = policies.GpuPolicies() if gpu_policies is None else policies.from_file(gpu_policies)
    return {
        "policies": rules.with_options(gpu_policy),
        "extended": ExtendedSettings(
            shared_resource=shared_resource, whole_resource=whole_resource, slots_per_gpu=slots_per_gpu
        ),
    }


_OFFERS: Final = ("gpu_policies", "gpu_policy", "slots_per_gpu", "shared_resource", "whole_resource")
_OPTIONS: Final = (
    click.option("--kubernetes", is_flag=True, help="Serve the kubelet of this node."),
    click.option(
        "--kubeconfig", metavar="FILE", type=click.Path(path_type=Path),
        help="How to reach the cluster.  [default: $KUBECONFIG, the pod's service account, ~/.kube/config]",
    ),
    click.option(
        "--node-name", metavar="NAME", help="As the cluster calls this node.  [default: $NODE_NAME, the host's name]"
    ),
    click.option(
        "--kubelet-dir", metavar="DIR", type=click.Path(path_type=Path), default="/var/lib/kubelet", show_default=True,
        help="The kubelet's folder.",
    ),
    click.option(
        "--cdi-dir", metavar="DIR", type=click.Path(path_type=Path), default="/var/run/cdi", show_default=True,
        help="Where the container runtime finds devices.",
    ),
    click.option(
        "--backend", type=click.Choice([Backend.DRA.value, Backend.EXTENDED.value]), default=Backend.DRA.value,
        show_default=True, help="Offer the GPUs as ResourceSlices or as extended resources.",
    ),
    click.option(
        "--remove-slices-on-exit", is_flag=True,
        help="Take the node's ResourceSlices back when the agent ends, for a node that will not come back.",
    ),
    click.option(
        "--metrics-access", type=click.Choice(["token", "open"]), default="token", show_default=True,
        help="Show metrics to bearer tokens that the cluster lets get /metrics, or to all who reach them.",
    ),
    click.option(
        "--gpu-policies", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
        help="What each GPU is offered as.  [default: shared]",
    ),
    click.option(
        "--gpu-policy", metavar="GPU=MODE", multiple=True,
        help="The same for one GPU, by index, UUID or model: share, mig, whole or reserve.",
    ),
    click.option(
        "--slots-per-gpu", type=click.IntRange(1, 1000), default=devices.SLOTS_PER_GPU, show_default=True,
        help="With the backend extended: how many slots a shared GPU has.",
    ),
    click.option(
        "--shared-resource", metavar="NAME", default=devices.SHARED_RESOURCE, show_default=True,
        help="With the backend extended: what slots are called.",
    ),
    click.option(
        "--whole-resource", metavar="NAME", default=devices.WHOLE_RESOURCE, show_default=True,
        help="With the backend extended: what whole GPUs are called.",
    ),
)  # fmt: skip
