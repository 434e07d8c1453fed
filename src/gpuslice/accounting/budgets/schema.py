"""GPUBudget objects: their shape in the API. deploy/crds is made from these structs (tools/crds.py)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gpuslice.kube.resources import Metadata, Resource
from gpuslice.policies.schema import GROUP, VERSION, Name, Selector
from gpuslice.policies.stored_policies import Condition  # noqa: TC001 - msgspec reads the types

KIND: Final = "GPUBudget"
PLURAL: Final = "gpubudgets"
GPU_BUDGETS: Final = Resource(GROUP, VERSION, PLURAL)

_DURATION: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"
_MONEY: Final = r"^[0-9]{1,12}(\.[0-9]{1,6})?$"
Duration = Annotated[str, Meta(pattern=_DURATION, max_length=32)]
Money = Annotated[str, Meta(pattern=_MONEY, max_length=20)]
Percent = Annotated[int, Meta(ge=1, le=1000)]
_Names = Annotated[tuple[Name, ...], Meta(max_length=1024)]
_Whole = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """A part of a budget. A field that we do not know is a typing error, and refused."""


class NamespacesSpec(_Spec, frozen=True):
    """With both, a namespace that either means."""

    names: Annotated[_Names | None, Meta(description="Namespaces by name.")] = None
    selector: Annotated[Selector | None, Meta(description="Namespaces by their labels.")] = None


class AmountSpec(_Spec, frozen=True):
    """One of these."""

    gpu_minutes: Annotated[_Whole | None, Meta(description="Minutes of one whole GPU.")] = None
    gpu_hours: Annotated[_Whole | None, Meta(description="Hours of one whole GPU.")] = None
    money: Annotated[Money | None, Meta(description='In the currency of the prices per model, as "250.00".')] = None


class CalendarSpec(_Spec, frozen=True):
    period: Literal["day", "week", "month", "year"]
    time_zone: Annotated[
        str, Meta(description="As Europe/Berlin: windows begin at midnight there.", min_length=1, max_length=64)
    ] = "UTC"


class WindowSpec(_Spec, frozen=True):
    """One of these."""

    calendar: Annotated[CalendarSpec | None, Meta(description="Begins anew with each day, week, month or year.")] = None
    rolling: Annotated[Duration | None, Meta(description="What is older than this is forgotten, as 7d.")] = None
    half_life: Annotated[Duration | None, Meta(description="What is as old as this counts for half.")] = None


class StepSpec(_Spec, frozen=True):
    at: Annotated[Percent, Meta(description="Percent of the budget that are used.")] = 100


class EvictSpec(_Spec, frozen=True):
    at: Annotated[Percent, Meta(description="Percent of the budget that are used.")] = 100
    grace: Annotated[Duration, Meta(description="How long it must have been so.")] = "5m"
    minimum_runtime: Annotated[Duration, Meta(description="A pod that runs for less is left alone.")] = "1m"


class LadderSpec(_Spec, frozen=True):
    """What is left out does not happen."""

    warn: Annotated[tuple[Percent, ...], Meta(description="Events at these percentages.", max_length=16)] = (50, 75, 90)
    lower: Annotated[StepSpec | None, Meta(description="New pods get the low priority class.")] = None
    gate: Annotated[StepSpec | None, Meta(description="New pods wait until there is budget again.")] = None
    evict: Annotated[
        EvictSpec | None, Meta(description="Running pods make room for pods within budget that wait for a GPU.")
    ] = None


class BudgetSpec(_Spec, frozen=True):
    amount: Annotated[AmountSpec, Meta(description="What each namespace may use in a window.")]
    window: WindowSpec
    namespaces: Annotated[NamespacesSpec | None, Meta(description="Whose budget it is; left out: everybody's.")] = None
    carry_over: Annotated[
        Annotated[int, Meta(ge=0, le=1000)] | None,
        Meta(description="Percent of the amount that a calendar's window leaves to the next at most."),
    ] = None
    borrow: Annotated[
        Annotated[int, Meta(ge=0, le=100)] | None,
        Meta(description="Percent of the amount that may be taken from the next calendar's window."),
    ] = None
    ladder: Annotated[
        LadderSpec | None,
        Meta(description="What happens, and when; left out: warnings, low priority and eviction at 100 percent."),
    ] = None
    safe: Annotated[
        bool,
        Meta(description="Refuse a pod whose activeDeadlineSeconds do not fit into what is left."),
    ] = False
    dry_run: Annotated[bool, Meta(description="Say what would happen, and let nothing happen.")] = False


class NamespaceStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One namespace. Admission goes by `step`."""

    name: str
    used: str = ""
    left: str = ""
    percent: int = 0
    step: str = ""
    reason: str = ""
    window_ends: str | None = None
    exhausted: Annotated[str | None, Meta(description="When nothing will be left, at the rate of now.")] = None
    #: What `safe` reckons with, in seconds of one whole GPU.
    left_gpu_seconds: int | None = None
    over_since: str | None = None


class BudgetStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    namespaces: tuple[NamespaceStatus, ...] = ()
    summary: Annotated[str, Meta(description="The namespace that has used most, as ml 93%.")] = ""
    over: Annotated[int, Meta(description="How many namespaces are beyond their budget.")] = 0
    counted: int = 0
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class BudgetMetadata(Metadata, frozen=True, gc=False, rename="camel"):
    creation_timestamp: str = ""


class StoredBudget(msgspec.Struct, frozen=True, rename="camel"):
    """As the API server has it. The spec is read strictly, apart from the rest."""

    metadata: BudgetMetadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: BudgetStatus = BudgetStatus()
