"""What was decided lately about pods like this one.

The pods of a Deployment or a Job differ in their names and in nothing that admission reads, so most of a cluster's
reviews ask again what has just been answered. What is kept is bounded, whatever tenants send.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from gpuslice.admission import marks
from gpuslice.dialects import registry
from gpuslice.model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gpuslice.admission.decisions import Answer
    from gpuslice.model.pods import Pod
    from gpuslice.model.policies import Rule

_Value = TypeVar("_Value")

_GENERATION: Final = 1024  # entries, of some 5 KiB each and at most four times that
#: A pod with more to read than this, or more to be told, is rare and not worth the memory. Bytes.
_LARGEST: Final = 4096
#: Nor is one that asks for more slices.
_MOST_REQUESTS: Final = 8

_encode: Final = msgspec.json.Encoder().encode


class Recent(Generic[_Value]):
    """A dictionary that forgets what has not been asked for lately: two generations, and the older one goes whole."""

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: dict[Hashable, _Value] = {}
        self._old: dict[Hashable, _Value] = {}

    def get(self, key: Hashable) -> _Value | None:
        value = self._new.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: Hashable, value: _Value) -> None:
        if len(self._new) >= _GENERATION:
            self._old, self._new = self._new, {}
        self._new[key] = value

    def __len__(self) -> int:
        return len(self._new) + len(self._old)


def likeness(pod: Pod, rule: Rule, settings: Settings) -> Hashable | None:
    """Equal for pods that get the same under one set of policies; None if the pod is not worth remembering.

    Holds all that deciding reads of a pod and nothing of what tells the pods of one workload apart: each may have
    annotations of its own.
    """
    annotations, labels = pod.annotations, pod.labels
    names = _annotations_read(settings.castslice_optimize, settings.castslice_ratio, settings.castslice_workload)
    said = [(name, annotations[name]) for name in names if name in annotations]
    # Whether there are any decides how the first of ours is written.
    shape = (pod.metadata is not None, bool(annotations), bool(labels), labels.get(marks.SLICED))
    read = _encode((shape, said, pod.spec))
    return (rule.policy, rule.position, read) if len(read) <= _LARGEST else None


def is_small(answer: Answer) -> bool:
    """Whether it can be kept. A few bytes of pod can ask for hundreds of claims, and each is in the patch."""
    requests = sum(len(reading.asked.requests) for reading in answer.decision.readings)
    return len(answer.response) <= _LARGEST and requests <= _MOST_REQUESTS


@cache
def _annotations_read(optimize: str, ratio: str, workload: str) -> tuple[str, ...]:
    settings = Settings(castslice_optimize=optimize, castslice_ratio=ratio, castslice_workload=workload)
    return tuple(dict.fromkeys((*marks.NAMES, *registry.annotations_read(settings))))
