"""Slices that gpu-manager serves: the pod keeps asking in vcuda, and gets the annotation that gpu-manager reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpuslice.admission.granting import not_allowed
from gpuslice.dialects import common_fields
from gpuslice.dialects.fields import annotation_field
from gpuslice.dialects.known import vcuda

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuslice.admission.granting import Grant
    from gpuslice.admission.patching import PodEdit
    from gpuslice.model.policies import Rule

#: gpu-manager's own: no setting renames it.
_CORE_LIMIT: Final = vcuda.CORE_LIMIT.name
_PERCENT: Final = re.compile(r"[1-9][0-9]{0,2}", re.ASCII)


def write(grants: Sequence[Grant], edit: PodEdit, rule: Rule) -> None:
    """Without the annotation gpu-manager does not limit compute; it holds for the pod, so the largest share decides."""
    for given in grants:
        if given.slice.gpu_model is not None or given.slice.shared_in_pod:
            raise not_allowed(
                given.reading.signs[0],
                rule,
                f"gpu-manager serves these pods, and chooses neither models nor which containers share; leave out "
                f"{' and '.join(field.name for field in common_fields.FIELDS)}",
            )
    shares = [given.slice.cores for given in grants if not given.slice.whole]
    if not shares:
        return
    said, most = edit.pod.annotations.get(_CORE_LIMIT), rule.maximum.cores
    if said is None:
        edit.annotations[_CORE_LIMIT] = str(max(shares))
    elif most is not None and (_PERCENT.fullmatch(said) is None or int(said) > most):
        # gpu-manager lets a container use so much, however little it asked for.
        raise not_allowed(
            annotation_field(_CORE_LIMIT), rule, f"{said[:40]!r} is not 1 to {most}, the most that is allowed"
        )
