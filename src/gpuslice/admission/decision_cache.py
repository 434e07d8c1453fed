"""What was decided lately about pods like this one.

The pods of a Deployment or a Job differ in their names and in nothing that admission reads, so most of a cluster's
reviews ask again what has just been answered. What is kept is bounded, whatever tenants send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import msgspec

from gpuslice.admission import pod_annotations
from gpuslice.admission.restrictions import device_annotations
from gpuslice.admission.restrictions.other_claims import claims_of_others
from gpuslice.dialects import registry

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gpuslice.admission.decision import Answer
    from gpuslice.model.pods import Pod
    from gpuslice.model.policies import Rule
    from gpuslice.model.settings import Settings

_Value = TypeVar("_Value")

_GENERATION: Final = 1024  # entries, of some 5 KiB each and at most four times that
#: Bytes. A pod with more to read than this, or with a longer answer, is rare and not worth the memory.
_LARGEST: Final = 4096
#: Neither is a pod that asks for more slices.
_MOST_REQUESTS: Final = 8

_encode: Final = msgspec.json.Encoder().encode


class DecisionCache(Generic[_Value]):
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


class CacheKey(NamedTuple):
    """What an answer depends on."""

    #: The rule.
    policy: str
    position: int
    #: All that is read of the pod.
    read: bytes


def cache_key(pod: Pod, rule: Rule, settings: Settings) -> CacheKey | None:
    """Equal for pods that get the same under one set of policies; None if the pod is not worth remembering.

    Holds all that deciding reads of a pod and nothing of what tells the pods of one workload apart: each may have
    annotations of its own.
    """
    if pod.spec is not None and claims_of_others(pod.spec):
        return None  # what these give is in the cluster, and can change
    if device_annotations.names(pod):
        return None  # rare, and by any of countless names
    annotations, labels = pod.annotations, pod.labels
    annotations_read, labels_read = _names_read(settings)
    said = _said(annotations, annotations_read), _said(labels, labels_read)
    # Whether there are any decides how the first of ours is written.
    shape = (
        pod.metadata and (pod.metadata.finalizers or ()),
        bool(annotations),
        bool(labels),
        labels.get(pod_annotations.SLICED),
    )
    read = _encode((shape, said, pod.spec))
    return CacheKey(rule.policy, rule.position, read) if len(read) <= _LARGEST else None


def _said(texts: dict[str, str], read: frozenset[str]) -> list[tuple[str, str]]:
    """Those that are read. Most pods have few; one that has many must not take the time of others."""
    if len(texts) > registry.MOST_SEARCHED:
        return [(name, texts[name]) for name in read if name in texts]
    return [said for said in texts.items() if said[0] in read or said[0].startswith(registry.OWN_DOMAINS)]


def is_small(answer: Answer) -> bool:
    """Whether it can be kept. A few bytes of pod can ask for hundreds of claims, and each is in the patch."""
    requests = sum(len(reading.asked.requests) for reading in answer.decision.readings)
    return len(answer.response) <= _LARGEST and requests <= _MOST_REQUESTS


def _names_read(settings: Settings) -> tuple[frozenset[str], frozenset[str]]:
    """The names of all annotations and of all labels that deciding reads. Found once for the settings of a process."""
    found = _known_names.get(id(settings))
    if found is None:
        annotations, labels = registry.names_of_pod_fields(settings)
        read = frozenset((*pod_annotations.NAMES, *annotations, *registry.RESOURCES_AS_ANNOTATIONS))
        found = read, frozenset(labels), settings
        if len(_known_names) >= _MOST_SETTINGS:
            _known_names.clear()
        _known_names[id(settings)] = found
    return found[:2]


#: By identity, with the settings themselves, so that none of the others is ever taken for them.
_known_names: Final[dict[int, tuple[frozenset[str], frozenset[str], Settings]]] = {}
_MOST_SETTINGS: Final = 16
