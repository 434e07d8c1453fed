"""What admission knows beside the pod. The edges fill it from the cluster, or from a command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuslice.admission.decision_cache import DecisionCache
from gpuslice.model import gpus
from gpuslice.model.settings import DEFAULT_SETTINGS, Settings
from gpuslice.policies.rule_set import PolicySet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuslice.admission.decision import Answer
    from gpuslice.model.policies import Backend

#: Assumed for a cluster without a GPU yet (its nodes may start with the first pod that needs one).
KNOWN_GPU_SIZES: Final = tuple(sorted({model.memory_bytes for model in gpus.PRESETS.values()}))


class UnknownNamespaceError(LookupError):
    """Raised for the labels of a namespace of which the watch has not told yet: the edge learns them and asks again."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"namespace {namespace} is not known yet")
        self.namespace = namespace


def _no_labels(_namespace: str) -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """As of now: an edge makes a new one when something changes."""

    settings: Settings = DEFAULT_SETTINGS
    policies: PolicySet = field(default_factory=PolicySet)
    #: Whether the cluster serves resource.k8s.io/v1.
    serves_dra: bool = True
    #: Takes precedence over policy: what `gpuslice admit --backend` says.
    backend: Backend | None = None
    #: The memory of the GPUs in the cluster, without repetition, those that matter most first.
    gpu_sizes: tuple[int, ...] = KNOWN_GPU_SIZES
    #: The extended resources that nodes with GPUs offer now. None: not known, or there is no such node yet.
    offered: frozenset[str] | None = None
    namespace_labels: Callable[[str], Mapping[str, str]] = _no_labels
    #: What was answered under this context. A new one, also by `replace`, starts with nothing to remember.
    answers: DecisionCache[Answer] = field(init=False, repr=False, compare=False, default_factory=DecisionCache)
