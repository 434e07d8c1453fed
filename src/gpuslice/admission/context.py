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

    from gpuslice.admission.answer_forms import AnswerForm
    from gpuslice.admission.decision import Answer
    from gpuslice.model.pods import PodClaim
    from gpuslice.model.policies import Backend

#: Assumed for a cluster without a GPU yet (its nodes may start with the first pod that needs one), usual ones first.
KNOWN_GPU_SIZES: Final = tuple(dict.fromkeys(model.memory_bytes for model in gpus.PRESETS.values()))


class UnknownError(LookupError):
    """Raised for what admission has to know of the cluster and does not: the edge learns it and asks again."""

    def __init__(self, what: str, namespace: str) -> None:
        super().__init__(f"{what} is not known yet")
        self.namespace = namespace


class UnknownNamespaceError(UnknownError):
    """Raised for the labels of a namespace of which the watch has not told yet."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"namespace {namespace}", namespace)


class UnknownClaimsError(UnknownError):
    """Raised for claims, or claim templates, that a pod names and that are not ours."""

    def __init__(self, namespace: str, claims: tuple[PodClaim, ...]) -> None:
        super().__init__(f"what a pod of namespace {namespace} claims", namespace)
        self.claims = claims


def _not_known(_namespace: str, claims: tuple[PodClaim, ...]) -> Mapping[PodClaim, int | None]:
    return dict.fromkeys(claims)


def _no_labels(_namespace: str) -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """As of now: an edge makes a new one when something changes."""

    settings: Settings = DEFAULT_SETTINGS
    policies: PolicySet = field(default_factory=PolicySet)
    #: Whether the cluster serves claims: resource.k8s.io/v1, for parts of a device.
    serves_dra: bool = True
    #: How nodes offer GPUs now or, before the first of them, will. Empty: not known, as without a cluster.
    node_backends: frozenset[Backend] = frozenset()
    #: Takes precedence over policy: what `gpuslice admit --backend` says.
    backend: Backend | None = None
    #: The memory of the GPUs in the cluster, without repetition, those that matter most first.
    gpu_sizes: tuple[int, ...] = KNOWN_GPU_SIZES
    #: The extended resources that nodes with GPUs offer now. None: not known, or there is no such node yet.
    offered: frozenset[str] | None = None
    namespace_labels: Callable[[str], Mapping[str, str]] = _no_labels
    #: How many GPUs each of some claims of a namespace asks for at most; None if that cannot be known. May raise
    #: UnknownClaimsError.
    claimed_gpus: Callable[[str, tuple[PodClaim, ...]], Mapping[PodClaim, int | None]] = _not_known
    #: What was answered under this context. A new one, also by `replace`, starts with nothing to remember.
    answers: DecisionCache[Answer] = field(init=False, repr=False, compare=False, default_factory=DecisionCache)
    #: The same, for pods that differ in the names of their containers.
    forms: DecisionCache[AnswerForm] = field(init=False, repr=False, compare=False, default_factory=DecisionCache)

    @property
    def knows_gpu_sizes(self) -> bool:
        """Whether the sizes are the cluster's own."""
        return self.gpu_sizes is not KNOWN_GPU_SIZES
