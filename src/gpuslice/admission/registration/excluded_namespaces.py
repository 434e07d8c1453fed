"""Where pods are left alone unless the configuration says otherwise: the cluster must be able to start, so must we, and
the software that brings GPUs must have them whole.

NVIDIA's GPU operator validates a node by a pod that asks for a GPU, and KAI reserves a GPU by such a pod. A rule for
all namespaces must not give these a slice. They are known by their namespaces and by nothing else: every tenant can
write their labels and names on a pod of its own, but not make pods in a namespace of the operator's.
"""

from __future__ import annotations

from typing import Final

_KUBERNETES: Final = "kube-system"
#: As their own instructions have them: the GPU operator, on OpenShift, NVIDIA's device plugin and DRA driver, KAI and
#: its reservations, those of its forebear.
OF_GPU_SOFTWARE: Final = (
    "gpu-operator",
    "nvidia-gpu-operator",
    "nvidia-device-plugin",
    "nvidia-dra-driver-gpu",
    "kai-scheduler",
    "kai-resource-reservation",
    "runai-reservation",
)


def by_default(home: str) -> tuple[str, ...]:
    """The names, where gpuslice itself is in `home`."""
    return (_KUBERNETES, home, *OF_GPU_SOFTWARE)
