"""Policies: which pods a rule is for, and what it says about their GPUs.

Exactly one rule decides about a pod, whole: nothing is merged, so what a pod gets can be read in one place. Each policy
speaks with the first of its rules that matches. Of the policies that speak, the one decides that has

1. the higher `priority`;
2. the more specific rule: a named namespace before a named service account before more namespace labels before more
   pod labels before an expression;
3. the name that comes first in the alphabet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuslice.model.selectors import EVERYTHING, LabelSelector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.model.pods import Toleration


class Backend(StrEnum):
    """How a slice is asked of Kubernetes."""

    DRA = "dra"
    EXTENDED = "extended"
    #: The pod keeps asking in vcuda, and gpu-manager serves it.
    GPU_MANAGER = "gpu-manager"


class Participation(StrEnum):
    """Which pods a rule takes part with."""

    ANNOTATED = "Annotated"  # those that ask in a dialect
    OPT_IN = "OptIn"  # also those that ask for nvidia.com/gpu and nothing else: read as castslice, no annotation needed
    OPT_OUT = "OptOut"  # none: they pass as they are


class OtherSchedulers(StrEnum):
    """What becomes of pods that ask for a slice and name the scheduler of another project."""

    TAKE_OVER = "TakeOver"  # Kubernetes' own scheduler places them
    LEAVE_ALONE = "LeaveAlone"  # within the limits, those that their scheduler serves itself pass as they are


class Exemption(StrEnum):
    """What a pod with a slice may not have, because it gives more than the slice, or keeps the pod from starting."""

    PRIVILEGED = "Privileged"  # a privileged container: all devices of the node
    CAPABILITIES = "Capabilities"  # those by which a container comes to the node's devices or files
    HOST_PID = "HostPID"  # the processes of other pods, and their files
    HOST_PATH = "HostPath"  # folders of the node with devices, drivers, or what gives them out
    VISIBLE_DEVICES = "VisibleDevices"  # by which NVIDIA's runtime adds GPUs
    NODE_NAME = "NodeName"  # with a claim: no scheduler allocates it


class WhenUnreviewed(StrEnum):
    """What becomes of a pod that asks for a GPU while no webhook answers."""

    REFUSE = "Refuse"  # the API server refuses it
    ADMIT = "Admit"  # it starts as it was written


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Every condition that is given must hold. With none, every pod matches."""

    namespaces: frozenset[str] = frozenset()
    namespace_labels: LabelSelector = EVERYTHING
    pod_labels: LabelSelector = EVERYTHING
    #: `name`, or `namespace/name`.
    service_accounts: frozenset[str] = frozenset()
    #: CEL over `object` (the pod), `namespaceObject` and `request`, as in Kubernetes' own admission policies.
    expression: str = ""

    @property
    def specificity(self) -> tuple[int, ...]:
        """Compared in this order; larger is more specific."""
        return (
            int(bool(self.namespaces)),
            int(bool(self.service_accounts)),
            len(self.namespace_labels.requirements),
            len(self.pod_labels.requirements),
            int(bool(self.expression)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a request gets that does not say it."""

    memory: int | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Maximum:
    """What one container may have at most, on each GPU; and on how many of them."""

    memory: int | None = None
    cores: int | None = None
    devices: int | None = None
    slots: int | None = None


_NO_MAXIMUM: Final = Maximum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a policy. What it leaves out is as without any policy."""

    policy: str
    name: str
    priority: int = 0
    position: int = 0
    match: Match = field(default_factory=Match)
    participation: Participation = Participation.ANNOTATED
    #: None allows all of them.
    dialects: frozenset[str] | None = None
    backend: Backend | None = None
    target_resource: str | None = None
    #: castslice: slots by workload type, instead of the configured ones.
    presets: Mapping[str, int] | None = None
    #: castslice: slots where the pod says nothing.
    default_slots: int | None = None
    defaults: Defaults = Defaults()
    maximum: Maximum = Maximum()
    gpu_model: str | None = None
    other_schedulers: OtherSchedulers = OtherSchedulers.TAKE_OVER
    allow: frozenset[Exemption] = frozenset()
    tolerations: tuple[Toleration, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    warn_only: bool = False
    #: None: refused where the rule limits anything.
    when_unreviewed: WhenUnreviewed | None = None

    @property
    def limits(self) -> bool:
        """Whether the rule keeps anything from any pod."""
        return (
            self.has_maximum
            or self.participation is Participation.OPT_IN
            or self.dialects is not None
            or self.gpu_model is not None
        )

    @property
    def has_maximum(self) -> bool:
        return self.maximum != _NO_MAXIMUM

    @property
    def places(self) -> bool:
        """Whether the rule says on which nodes its pods are."""
        return bool(self.tolerations or self.node_selector)

    @property
    def refuses_unreviewed(self) -> bool:
        """Whether the API server is to refuse the rule's pods while no webhook answers."""
        if self.participation is Participation.OPT_OUT or self.warn_only:
            return False  # these pods pass as they are, reviewed or not
        if self.when_unreviewed is None:
            return self.limits
        return self.when_unreviewed is WhenUnreviewed.REFUSE

    @property
    def label(self) -> str:
        """As people and metrics name it: `team-a/training`."""
        return f"{self.policy}/{self.name}" if self.policy else self.name


#: What holds for a pod that no rule matches.
NO_RULE: Final = Rule(policy="", name="none")
