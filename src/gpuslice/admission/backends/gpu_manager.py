"""Slices that gpu-manager serves: the pod keeps asking in vcuda, and gets the annotation that gpu-manager reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuslice.dialects.vcuda import CORE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.admission.granting import Grant
    from gpuslice.admission.patching import PodEdit


def write(grants: Sequence[Grant], edit: PodEdit) -> None:
    """Without the annotation gpu-manager does not limit compute; it holds for the pod, so the largest share decides."""
    shares = [given.slice.cores for given in grants if not given.slice.whole]
    if shares and CORE_LIMIT not in edit.pod.annotations:
        edit.annotations[CORE_LIMIT] = str(max(shares))
