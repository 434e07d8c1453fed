"""A budget as it is reckoned with, and how it is read from its object, with complaints that name the field. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import msgspec

from gpuslice.accounting.budgets.schema import KIND, BudgetSpec, EvictSpec, LadderSpec, StepSpec
from gpuslice.accounting.charges import GPU_HOUR, GPU_MINUTE
from gpuslice.accounting.windows import Calendar, HalfLife, Period, Rolling
from gpuslice.model.errors import GpusliceError
from gpuslice.model.values import durations
from gpuslice.policies.parsing import SelectorError, label_selector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice.accounting.budgets.schema import AmountSpec, StoredBudget, WindowSpec
    from gpuslice.accounting.windows import Window
    from gpuslice.model.selectors import LabelSelector
    from gpuslice.policies.schema import Selector

#: Of the unit of money in which prices are: the currency's millionth.
MONEY_UNIT: Final = 1_000_000
_SHORTEST_WINDOW_MS: Final = 60_000
_DEFAULT_LADDER: Final = LadderSpec(lower=StepSpec(), evict=EvictSpec())


class BudgetError(GpusliceError):
    """Raised when a GPUBudget cannot be what its author meant. Names the budget and the field."""


class Unit(StrEnum):
    """What a budget is counted in: GPU time (parts times milliseconds), or millionths of the currency."""

    TIME = "time"
    MONEY = "money"


@dataclass(frozen=True, slots=True)
class Eviction:
    """In percent, and in milliseconds."""

    at: int = 100
    grace: int = 300_000
    minimum_runtime: int = 60_000


@dataclass(frozen=True, slots=True)
class Ladder:
    """At which percentages what happens; None: never."""

    warn: tuple[int, ...] = (50, 75, 90)
    lower: int | None = 100
    gate: int | None = None
    evict: Eviction | None = field(default_factory=Eviction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What each namespace that it means may use in a window."""

    name: str
    unit: Unit
    amount: int
    window: Window
    uid: str = ""
    generation: int = 0
    #: In milliseconds since 1970: before that there was no window from which anything could be carried over.
    created: int = 0
    #: None, both: every namespace.
    names: frozenset[str] | None = None
    selector: LabelSelector | None = None
    carry_over: int = 0
    borrow: int = 0
    ladder: Ladder = field(default_factory=Ladder)
    safe: bool = False
    dry_run: bool = False

    def means(self, namespace: str, labels: Mapping[str, str]) -> bool:
        if self.names is None and self.selector is None:
            return True
        if self.names is not None and namespace in self.names:
            return True
        return self.selector is not None and self.selector.unmet(labels) is None

    def units(self, amounts: Mapping[int, int]) -> int:
        """Amounts of GPU time by price, in the budget's unit."""
        if self.unit is Unit.TIME:
            return sum(amounts.values())
        return sum(amount * price for price, amount in amounts.items()) // GPU_HOUR

    def show(self, units: int) -> str:
        """For people: GPU-hours or money, to the hundredth, rounded towards what is bad news."""
        whole = GPU_HOUR if self.unit is Unit.TIME else MONEY_UNIT
        cents = units * 100 // whole
        text = f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02}"
        return f"{text} GPU-h" if self.unit is Unit.TIME else text


def read(stored: StoredBudget) -> Budget:
    """Raises BudgetError for what makes no sense, stored by whomever."""
    metadata = stored.metadata
    try:
        spec = msgspec.json.decode(stored.spec, type=BudgetSpec)
        return _budget(stored, spec)
    except (msgspec.DecodeError, ValueError) as error:
        raise BudgetError(f"{KIND} {metadata.name}: {error}") from None


def _budget(stored: StoredBudget, spec: BudgetSpec) -> Budget:
    unit, amount = _amount(spec.amount)
    window = _window(spec.window)
    if not isinstance(window, Calendar):
        for name, given in (("carryOver", spec.carry_over), ("borrow", spec.borrow)):
            if given:
                raise ValueError(f"spec.{name}: only a calendar's windows follow each other; set window.calendar")
    namespaces = spec.namespaces
    return Budget(
        name=stored.metadata.name,
        uid=stored.metadata.uid,
        generation=stored.metadata.generation,
        created=_moment(stored.metadata.creation_timestamp),
        unit=unit,
        amount=amount,
        window=window,
        names=None if namespaces is None or namespaces.names is None else frozenset(namespaces.names),
        selector=None if namespaces is None or namespaces.selector is None else _selector(namespaces.selector),
        carry_over=amount * (spec.carry_over or 0) // 100,
        borrow=amount * (spec.borrow or 0) // 100,
        ladder=_ladder(_DEFAULT_LADDER if spec.ladder is None else spec.ladder),
        safe=spec.safe,
        dry_run=spec.dry_run,
    )


def _selector(spec: Selector) -> LabelSelector:
    try:
        return label_selector(spec)
    except SelectorError as error:
        raise ValueError(f"spec.namespaces.selector.{error}") from None


def _amount(spec: AmountSpec) -> tuple[Unit, int]:
    given = [name for name in ("gpu_minutes", "gpu_hours", "money") if getattr(spec, name) is not None]
    if len(given) != 1:
        raise ValueError("spec.amount: give one of gpuMinutes, gpuHours and money")
    if spec.money is not None:
        amount = int(Decimal(spec.money) * MONEY_UNIT)
        if not amount:
            raise ValueError("spec.amount.money: a budget of nothing is no budget; forbid GPUs by a GpuQuota instead")
        return Unit.MONEY, amount
    return Unit.TIME, (spec.gpu_hours or 0) * GPU_HOUR + (spec.gpu_minutes or 0) * GPU_MINUTE


def _window(spec: WindowSpec) -> Window:
    given = [name for name in ("calendar", "rolling", "half_life") if getattr(spec, name) is not None]
    if len(given) != 1:
        raise ValueError("spec.window: give one of calendar, rolling and halfLife")
    if spec.calendar is not None:
        try:
            ZoneInfo(spec.calendar.time_zone)
        except (KeyError, ValueError, OSError):
            raise ValueError(
                f"spec.window.calendar.timeZone: {spec.calendar.time_zone!r} is no time zone; write one as "
                "Europe/Berlin or UTC"
            ) from None
        return Calendar(Period(spec.calendar.period), spec.calendar.time_zone)
    if spec.rolling is not None:
        return Rolling(_length("spec.window.rolling", spec.rolling))
    assert spec.half_life is not None
    return HalfLife(_length("spec.window.halfLife", spec.half_life))


def _length(where: str, text: str) -> int:
    length = _milliseconds(where, text)
    if length < _SHORTEST_WINDOW_MS:
        raise ValueError(f"{where}: {text!r} would forget at once what is used; write at least 1m")
    return length


def _milliseconds(where: str, text: str) -> int:
    try:
        return round(durations.parse_seconds(text) * 1000)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _ladder(spec: LadderSpec) -> Ladder:
    evict = spec.evict
    steps = [("lower", spec.lower), ("gate", spec.gate), ("evict", spec.evict)]
    given = [(name, step.at) for name, step in steps if step is not None]
    for (earlier, low), (later, high) in itertools.pairwise(given):
        if high < low:
            raise ValueError(f"spec.ladder.{later}.at: {high} is below {earlier}.at, {low}; steps go up")
    return Ladder(
        warn=tuple(sorted(set(spec.warn))),
        lower=spec.lower.at if spec.lower else None,
        gate=spec.gate.at if spec.gate else None,
        evict=None
        if evict is None
        else Eviction(
            evict.at,
            _milliseconds("spec.ladder.evict.grace", evict.grace),
            _milliseconds("spec.ladder.evict.minimumRuntime", evict.minimum_runtime),
        ),
    )


def _moment(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000 if text else 0
