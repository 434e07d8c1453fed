"""Annotations of a pod by which container runtimes and their plugins add devices to its containers.

Kubernetes has no use for them on a pod, but CRI-O hands all annotations of a pod to the runtime below it, NVIDIA's
runtime adds the CDI devices that it finds named there, and plugins of the Node Resource Interface read them as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuslice.model.pods import Pod

_BEGINNINGS: Final = (
    "cdi.k8s.io/",
    "nvidia.cdi.k8s.io/",
    "io.kubernetes.cri-o.Devices",
    "devices.crio.io",
    # Of plugins: devices, CDI devices and mounts.
    *(
        f"{what}.{domain}"
        for what in ("devices", "cdi", "cdi-devices", "mounts")
        for domain in ("nri.io", "noderesource.dev")
    ),
    "devices.gke.io",
)


def names(pod: Pod) -> list[str]:
    """Those that a pod has."""
    return [name for name in pod.annotations if name.startswith(_BEGINNINGS)]
