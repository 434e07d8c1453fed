"""SlicePolicy objects: their shape in the API.

The custom resource definition in deploy/crds is made from these structs (tools/crds.py), so the API server and we
agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gpuslice.dialects import registry
from gpuslice.model.pods import Quantity  # noqa: TC001 - msgspec reads the types
from gpuslice.model.policies import Backend, Exemption, OtherSchedulers, Participation, WhenUnreviewed
from gpuslice.model.selectors import Operator  # noqa: TC001 - msgspec reads the types

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP: Final = "gpuslice.io"
VERSION: Final = "v1alpha1"
KIND: Final = "SlicePolicy"
PLURAL: Final = "slicepolicies"
API_VERSION: Final = f"{GROUP}/{VERSION}"

_DNS_LABEL: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_QUALIFIED_NAME: Final = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_RESOURCE_NAME: Final = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_LABEL_TEXT: Final = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_ACCOUNT: Final = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

Name = Annotated[str, Meta(pattern=_DNS_LABEL, max_length=63)]
Account = Annotated[str, Meta(pattern=_ACCOUNT, max_length=317)]
ResourceName = Annotated[str, Meta(pattern=_RESOURCE_NAME, max_length=317)]
LabelKey = Annotated[str, Meta(pattern=_QUALIFIED_NAME, max_length=317)]
LabelText = Annotated[str, Meta(pattern=_LABEL_TEXT, max_length=63)]
ModelName = Annotated[str, Meta(min_length=1, max_length=64)]
Positive = Annotated[int, Meta(ge=1, le=1_000_000)]
Percent = Annotated[int, Meta(ge=1, le=100)]
if TYPE_CHECKING:
    DialectName = str
else:  # which they are is known when the program starts
    DialectName = Literal[registry.NAMES]


def _dialects(names: Iterable[str]) -> str:
    return " and ".join(names)


_READ_AS: Final = _dialects(dialect.name for dialect in registry.BY_WHOLE_GPUS)
_IN_SLOTS: Final = _dialects(each.name for each in registry.DIALECTS if each.default_backend is Backend.EXTENDED)
_BY_GPU_MANAGER: Final = _dialects(registry.read_by(Backend.GPU_MANAGER))

_OTHER_SCHEDULERS: Final = ", ".join(registry.SCHEDULERS)


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """A part of a policy. A field that we do not know is a typing error, and refused."""


class MatchExpression(_Spec, frozen=True):
    key: LabelKey
    operator: Operator
    values: Annotated[tuple[LabelText, ...], Meta(max_length=64)] = ()


class Selector(_Spec, frozen=True):
    match_labels: dict[LabelKey, LabelText] = {}
    match_expressions: Annotated[tuple[MatchExpression, ...], Meta(max_length=16)] = ()


class MatchSpec(_Spec, frozen=True):
    namespaces: Annotated[
        tuple[Name, ...], Meta(max_length=256, description="The pod's namespace is one of these.")
    ] = ()
    namespace_selector: Annotated[Selector | None, Meta(description="The labels of the pod's namespace meet this.")] = (
        None
    )
    pod_selector: Annotated[Selector | None, Meta(description="The pod's labels meet this.")] = None
    service_accounts: Annotated[
        tuple[Account, ...],
        Meta(max_length=256, description="The pod's service account is one of these: name, or namespace/name."),
    ] = ()
    expression: Annotated[
        str,
        Meta(
            max_length=4096,
            description="A CEL expression that is true, over object (the pod), namespaceObject (metadata.name, "
            "metadata.labels) and request (namespace, userInfo.username, userInfo.groups). If it "
            "has no answer for a pod, the rule does not match.",
        ),
    ] = ""


class DefaultsSpec(_Spec, frozen=True):
    memory: Annotated[Quantity | None, Meta(description="GPU memory where a request names none, as 4Gi.")] = None
    cores: Annotated[Percent | None, Meta(description="Percent of the GPU's compute where a request names none.")] = (
        None
    )


class MaximumSpec(_Spec, frozen=True):
    memory: Annotated[Quantity | None, Meta(description="GPU memory on each GPU, as 16Gi.")] = None
    cores: Annotated[Percent | None, Meta(description="Percent of each GPU's compute.")] = None
    devices: Annotated[Positive | None, Meta(description="GPUs, or MIG partitions, of one container.")] = None
    slots: Annotated[Positive | None, Meta(description="Slots of one container.")] = None


class TolerationSpec(_Spec, frozen=True):
    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelText | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class RuleSpec(_Spec, frozen=True):
    name: Annotated[Name, Meta(description="Tells the rule apart within the policy.")]
    match: Annotated[
        MatchSpec | None, Meta(description="Which pods. Every condition must hold; with none, every pod.")
    ] = None
    participation: Annotated[
        Participation,
        Meta(
            description="Annotated: pods that ask in a dialect. OptIn: also those that ask for nvidia.com/gpu alone, "
            f"read as {_READ_AS}. OptOut: none, they pass as they are."
        ),
    ] = Participation.ANNOTATED
    dialects: Annotated[
        tuple[DialectName, ...] | None,
        Meta(description="The dialects that may be spoken. Without it, all."),
    ] = None
    backend: Annotated[
        Backend | None,
        Meta(
            description="How slices are asked of Kubernetes: dra (claims), extended (slots of a resource), or "
            f"gpu-manager ({_BY_GPU_MANAGER} requests stay as they are). Without it, what the nodes offer; "
            f"where they offer both, extended for {_IN_SLOTS} and dra for the others."
        ),
    ] = None
    target_resource: Annotated[
        ResourceName | None, Meta(description="The resource that counts slots, for the backend extended.")
    ] = None
    presets: Annotated[
        dict[str, Positive] | None, Meta(description="castslice: slots by workload type, instead of the built-in ones.")
    ] = None
    default_slots: Annotated[Positive | None, Meta(description="castslice: slots where the pod says nothing.")] = None
    defaults: Annotated[DefaultsSpec | None, Meta(description="What a request gets that does not say it.")] = None
    maximum: Annotated[MaximumSpec | None, Meta(description="What one container may have at most.")] = None
    gpu_model: Annotated[
        ModelName | None,
        Meta(description="The model that these pods get, as A100-40GB, and no other."),
    ] = None
    other_schedulers: Annotated[
        OtherSchedulers,
        Meta(
            description=f"What becomes of pods that name another project's scheduler ({_OTHER_SCHEDULERS}). TakeOver: "
            "Kubernetes' own places them. LeaveAlone: those that ask in a dialect of that scheduler pass as they are, "
            "if they are within the limits."
        ),
    ] = OtherSchedulers.TAKE_OVER
    allow: Annotated[
        tuple[Exemption, ...],
        Meta(
            max_length=len(Exemption),
            description="What pods with a slice may have although it gives them more GPUs than that: privileged "
            "containers, capabilities as SYS_ADMIN, hostPID, hostPath volumes with devices, NVIDIA_VISIBLE_DEVICES; or "
            "although it keeps them from starting: nodeName with a claim. Without it, such pods are refused.",
        ),
    ] = ()
    tolerations: Annotated[
        tuple[TolerationSpec, ...], Meta(max_length=32, description="Added to GPU pods where they are missing.")
    ] = ()
    node_selector: Annotated[
        dict[LabelKey, LabelText], Meta(description="Added to GPU pods whose own selector does not name the label.")
    ] = {}
    warn_only: Annotated[
        bool, Meta(description="Pods pass as they are, with a warning that says what would have happened.")
    ] = False


class PolicySpec(_Spec, frozen=True):
    rules: Annotated[tuple[RuleSpec, ...], Meta(min_length=1, max_length=64)]
    priority: Annotated[
        int,
        Meta(
            ge=-1_000_000,
            le=1_000_000,
            description="A policy speaks with the first of its rules that matches a pod. The policy with the highest "
            "priority decides; among equals the one with the more specific rule, then by name.",
        ),
    ] = 0
    when_unreviewed: Annotated[
        WhenUnreviewed | None,
        Meta(
            description="What becomes of a pod that asks for a GPU while no webhook answers. Refuse: the API server "
            "refuses pods of the namespaces that a rule may be for. Admit: they start as they were written. Without "
            "it, Refuse for the rules that limit anything (OptIn, maximum, dialects, gpuModel), and Admit for others."
        ),
    ] = None


class PolicyMetadata(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=253)]


class SlicePolicy(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    metadata: PolicyMetadata
    spec: PolicySpec
