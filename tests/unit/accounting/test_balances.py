"""A year on a fake clock with a hundred namespaces, compared with a plain reference; and windows, one by one."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.accounting.budgets import budget as budgets
from gpuslice.accounting.budgets.balance import Balance, Balances, Credit, OpenUse
from gpuslice.accounting.budgets.budget import Budget, BudgetError, Eviction, Ladder, Unit
from gpuslice.accounting.budgets.ladder import Step, exhausted_at, is_over, judge
from gpuslice.accounting.budgets.schema import BudgetMetadata, StoredBudget
from gpuslice.accounting.charges import GPU_HOUR, GPU_PARTS
from gpuslice.accounting.metering import HOUR_MS, Entry, Holder, Kind
from gpuslice.accounting.windows import Calendar, HalfLife, Period, Rolling
from tests.unit.accounting import reference
from tests.unit.accounting.reference import MemoryUsage

if TYPE_CHECKING:
    from collections.abc import Iterable

_YEAR = int(datetime(2027, 1, 1, tzinfo=UTC).timestamp()) * 1000
_ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Havana"]
_DAY = 24 * HOUR_MS


def _budget(window: Calendar | Rolling | HalfLife, hours: int = 100, **more: object) -> Budget:
    return Budget(name="b", unit=Unit.TIME, amount=hours * GPU_HOUR, window=window, **more)  # type: ignore[arg-type]


def _entry(namespace: str, start: int, until: int, parts: int, price: int = 0) -> Entry:
    return Entry(start, until, parts, Kind.CHARGE, "gpu", "node", "A100", price, Holder(namespace, "p", namespace))


class _HourlyUsage:
    """A year of full hours, summed up so that any time is two lookups."""

    def __init__(self, uses: dict[str, dict[int, int]]) -> None:
        self._sums: dict[str, list[int]] = {}
        self._uses = uses
        for name, by_hour in uses.items():
            sums = [0]
            for hour in range(24 * 366):
                sums.append(sums[-1] + by_hour.get(_YEAR + hour * HOUR_MS, 0))
            self._sums[name] = sums

    def totals(self, start: int, until: int) -> dict[str, dict[int, int]]:
        low, high = (max(0, min(24 * 366, (at - _YEAR) // HOUR_MS)) for at in (start, until))
        return {name: {0: sums[high] - sums[low]} for name, sums in self._sums.items()}

    def hours(self, start: int, until: int) -> Iterable[tuple[str, int, int, int]]:
        for name, by_hour in self._uses.items():
            for hour in range(max(start, _YEAR), until, HOUR_MS):
                if amount := by_hour.get(hour, 0):
                    yield name, 0, hour, amount


def _a_year_of_uses() -> dict[str, dict[int, int]]:
    dice = random.Random(16)  # noqa: S311 - the same every time
    found = {}
    for number in range(100):
        by_hour = {}
        for _ in range(40):
            start, length = dice.randrange(24 * 365), dice.randrange(1, 30)
            parts = dice.randrange(1, GPU_PARTS)
            for hour in range(start, min(start + length, 24 * 365)):
                by_hour[_YEAR + hour * HOUR_MS] = parts * HOUR_MS
        found[f"team-{number}"] = by_hour
    return found


def test_a_year_with_a_hundred_namespaces_is_as_a_plain_reference_has_it() -> None:
    """Whole-hour zones: this ledger in memory knows full hours alone."""
    uses = _a_year_of_uses()
    balances, dice = Balances(_HourlyUsage(uses)), random.Random(17)  # noqa: S311 - the same every time
    zone = "Europe/Berlin"
    created = _YEAR
    months = _budget(Calendar(Period.MONTH, zone), 20, carry_over=15 * GPU_HOUR, borrow=5 * GPU_HOUR, created=created)
    half = _budget(HalfLife(3 * _DAY), 10)
    rolling = _budget(Rolling(7 * _DAY), 10)
    names = list(uses)
    steps: set[Step] = set()
    for day in range(1, 365):
        now = _YEAR + day * _DAY + dice.randrange(24) * HOUR_MS
        sampled = dice.sample(names, 2)
        for period in (Period.DAY, Period.WEEK, Period.MONTH, Period.YEAR):
            found = balances.of(_budget(Calendar(period, zone)), names, (), (), now)
            for name in sampled:
                expected = reference.used_in_window(uses[name].items(), now, period, zone)
                assert found[name].used == expected, (name, period, now)
        carried = balances.of(months, names, (), (), now)
        rolled = balances.of(rolling, names, (), (), now)
        decayed = balances.of(half, names, (), (), now)
        name = sampled[0]
        plain = reference.carried(
            uses[name].items(), created, now, zone, months.amount, months.carry_over, months.borrow
        )
        assert carried[name].limit == months.amount + months.borrow + plain
        assert rolled[name].used == sum(amount for hour, amount in uses[name].items() if now - 7 * _DAY <= hour < now)
        if day % 30 == 0:
            expected_left = reference.decayed(uses[name].items(), now, 3 * _DAY)
            assert decayed[name].used == pytest.approx(expected_left, rel=1e-4, abs=GPU_PARTS)
        for each in names:
            balance = carried[each]
            verdict = judge(months, balance, now - _DAY if is_over(months, balance) else None, None, now)
            steps.add(verdict.step)
            assert (verdict.step is Step.EVICT) == (balance.used * 100 >= 100 * balance.limit)
            assert (verdict.step >= Step.WARN) == (balance.used * 2 >= balance.limit)
    assert steps == {Step.WITHIN, Step.WARN, Step.EVICT}


@given(
    st.sampled_from(list(Period)),
    st.sampled_from(_ZONES),
    st.integers(_YEAR // 1000, _YEAR // 1000 + 3 * 365 * 86400).map(lambda second: second * 1000),
)
def test_windows_of_a_calendar_follow_each_other_without_a_gap(period: Period, zone: str, at: int) -> None:
    window = Calendar(period, zone)
    start, end = window.bounds(at)
    assert start <= at < end
    assert window.bounds(start) == window.bounds(end - 1) == (start, end)
    assert window.bounds(end)[0] == end
    day = reference.local_date(at, zone)
    assert reference.window_of(reference.local_date(start, zone), period) == reference.window_of(day, period)
    assert reference.window_of(reference.local_date(end, zone), period) != reference.window_of(day, period)


@pytest.mark.parametrize(
    ("zone", "date", "hours"),
    [
        ("Europe/Berlin", (2027, 3, 28), 23),
        ("Europe/Berlin", (2027, 10, 31), 25),
        ("Australia/Lord_Howe", (2027, 4, 4), 24.5),
        ("America/Havana", (2027, 3, 14), 23),  # midnight itself is skipped there
        ("UTC", (2027, 3, 28), 24),
    ],
)
def test_a_day_of_another_length_is_one_day(zone: str, date: tuple[int, int, int], hours: float) -> None:
    noon = int(datetime(*date, 12, tzinfo=UTC).timestamp()) * 1000
    start, end = Calendar(Period.DAY, zone).bounds(noon)
    assert (end - start) / HOUR_MS == hours


def test_what_goes_on_counts_from_the_beginning_of_the_window() -> None:
    window = Calendar(Period.DAY)
    now = _YEAR + _DAY + HOUR_MS
    usage = MemoryUsage([_entry("team", _YEAR, _YEAR + HOUR_MS, GPU_PARTS)])
    going_on = OpenUse("team", 0, GPU_PARTS // 2, _YEAR + 23 * HOUR_MS, now)
    found = Balances(usage).of(_budget(window), ["team", "other"], [going_on], (), now)
    assert found["team"].used == GPU_HOUR // 2
    assert found["other"].used == 0


def test_a_credit_counts_in_the_window_in_which_it_was_given() -> None:
    credit = Credit("b", "team", 7 * GPU_HOUR, _YEAR + HOUR_MS)
    balances, budget = Balances(MemoryUsage()), _budget(Calendar(Period.DAY))
    assert balances.of(budget, ["team"], (), [credit], _YEAR + 2 * HOUR_MS)["team"].limit == 107 * GPU_HOUR
    assert balances.of(budget, ["team"], (), [credit], _YEAR + _DAY)["team"].limit == 100 * GPU_HOUR
    assert balances.of(budget, ["team"], (), [credit], _YEAR)["team"].limit == 100 * GPU_HOUR, "not before it is given"
    rolling = _budget(Rolling(_DAY))
    assert balances.of(rolling, ["team"], (), [credit], _YEAR + _DAY)["team"].limit == 107 * GPU_HOUR
    assert balances.of(rolling, ["team"], (), [credit], _YEAR + 2 * _DAY)["team"].limit == 100 * GPU_HOUR


def test_money_is_gpu_time_at_the_price_of_each_model() -> None:
    usage = MemoryUsage(
        [
            _entry("team", _YEAR, _YEAR + HOUR_MS, GPU_PARTS, price=2_500_000),
            _entry("team", _YEAR, _YEAR + HOUR_MS, GPU_PARTS // 2, price=1_000_000),
        ]
    )
    budget = Budget(name="b", unit=Unit.MONEY, amount=10_000_000, window=Calendar(Period.MONTH))
    found = Balances(usage).of(budget, ["team"], (), (), _YEAR + HOUR_MS)["team"]
    assert budget.show(found.used) == "3.00"
    assert found.percent == 30


def test_the_ladder_goes_up_step_by_step_and_evicts_after_grace() -> None:
    ladder = Ladder(warn=(50, 90), lower=100, gate=110, evict=Eviction(120, grace=60_000))
    budget = _budget(Calendar(Period.DAY), ladder=ladder)

    def step(percent: int, over_since: int | None = None) -> Step:
        balance = Balance(budget.amount, budget.amount * percent // 100, 0)
        return judge(budget, balance, over_since, None, now=1_000_000).step

    assert [step(percent) for percent in (49, 50, 99, 100, 109, 110, 119)] == [
        *(Step.WITHIN, Step.WARN, Step.WARN, Step.LOWER, Step.LOWER, Step.GATE, Step.GATE)
    ]
    assert step(120) is Step.GATE
    assert step(120, 940_001) is Step.GATE
    assert step(120, 940_000) is Step.EVICT


def test_a_budget_without_steps_only_warns() -> None:
    budget = _budget(Calendar(Period.DAY), ladder=Ladder(lower=None, evict=None))
    verdict = judge(budget, Balance(100, 10_000, 0), 0, None, now=10**12)
    assert verdict.step is Step.WARN
    assert "90 %" in verdict.reason


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**7), st.integers(60_000, 10**9))
def test_at_the_rate_of_now_nothing_is_left_when_the_forecast_says(
    limit: int, used: int, rate: int, half_life: int
) -> None:
    balance = Balance(limit * 10**6, used * 10**6, 0)
    window = HalfLife(half_life)
    at = exhausted_at(balance, rate * 10**6, window, now=0)
    if balance.left <= 0:
        assert at == 0
    elif at is not None and 0 < at < 20 * half_life:
        going_on = window.left_of(rate * 10**6 * at // HOUR_MS, 0, at, at)
        within = rate * 10**6 / HOUR_MS + 1  # a forecast is to the millisecond
        assert balance.used * window.factor(at) + going_on == pytest.approx(balance.limit, rel=1e-2, abs=within)


def test_a_window_that_ends_before_nothing_is_left_has_no_forecast() -> None:
    balance = Balance(10 * GPU_HOUR, 0, 0, window_end=5 * HOUR_MS)
    assert exhausted_at(balance, GPU_HOUR, Calendar(Period.DAY), 0) is None
    assert exhausted_at(balance, 4 * GPU_HOUR, Calendar(Period.DAY), 0) == 2.5 * HOUR_MS


def _stored(**spec: object) -> StoredBudget:
    made = BudgetMetadata(name="b", uid="u", creation_timestamp="2027-01-01T00:00:00Z")
    return StoredBudget(made, msgspec.Raw(msgspec.json.encode(spec)))


_DAILY = {"calendar": {"period": "day"}}


def test_a_budget_is_read_from_its_object() -> None:
    found = budgets.read(
        _stored(
            amount={"gpuMinutes": 90},
            window={"calendar": {"period": "month", "timeZone": "Europe/Berlin"}},
            namespaces={"names": ["ml"], "selector": {"matchLabels": {"tier": "free"}}},
            carryOver=50,
        )
    )
    assert (found.amount, found.carry_over) == (GPU_HOUR * 3 // 2, GPU_HOUR * 3 // 4)
    assert found.created == _YEAR
    assert [found.means("ml", {}), found.means("x", {"tier": "free"}), found.means("x", {})] == [True, True, False]
    assert budgets.read(_stored(amount={"gpuHours": 1}, window=_DAILY)).means("anything", {})


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"amount": {"gpuHours": 1}, "window": {"halfLife": "0s"}}, "spec.window.halfLife: '0s' would forget at once"),
        ({"amount": {"gpuHours": 1}, "window": {"rolling": "0s"}}, "spec.window.rolling"),
        ({"amount": {"gpuHours": 1}, "window": {}}, "spec.window: give one of"),
        ({"amount": {"gpuHours": 1, "gpuMinutes": 1}, "window": _DAILY}, "spec.amount: give one of"),
        ({"amount": {"gpuHours": 0}, "window": _DAILY}, "$.amount.gpuHours"),
        ({"amount": {"money": "0.00"}, "window": _DAILY}, "spec.amount.money"),
        ({"amount": {"gpuHours": 1}, "window": {"calendar": {"period": "day", "timeZone": "Moon/Sea"}}}, "timeZone"),
        ({"amount": {"gpuHours": 1}, "window": {"rolling": "7d"}, "carryOver": 10}, "spec.carryOver"),
        (
            {"amount": {"gpuHours": 1}, "window": _DAILY, "ladder": {"lower": {"at": 100}, "evict": {"at": 90}}},
            "spec.ladder.evict.at: 90 is below lower.at, 100",
        ),
        ({"amount": {"gpuHours": 1}, "window": _DAILY, "budjet": 1}, "budjet"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_name_of_its_field(spec: dict[str, object], told: str) -> None:
    with pytest.raises(BudgetError) as raised:
        budgets.read(_stored(**spec))
    assert told in str(raised.value)
    assert str(raised.value).startswith("GPUBudget b: ")


def test_a_namespace_that_used_nothing_has_carried_over_all_that_it_can() -> None:
    budget = _budget(Calendar(Period.DAY), 10, carry_over=25 * GPU_HOUR, created=_YEAR)
    balances = Balances(MemoryUsage([_entry("busy", _YEAR, _YEAR + HOUR_MS, GPU_PARTS)]))
    for day, idle, busy in ((0, 10, 10), (1, 20, 19), (2, 30, 29), (5, 35, 35)):
        found = balances.of(budget, ["idle", "busy"], (), (), _YEAR + day * _DAY + 2 * HOUR_MS)
        assert [found[name].limit // GPU_HOUR for name in ("idle", "busy")] == [idle, busy], day


def test_what_was_borrowed_is_missing_the_next_day() -> None:
    budget = _budget(Calendar(Period.DAY), 10, borrow=5 * GPU_HOUR, created=_YEAR)
    usage = MemoryUsage(
        [_entry("team", _YEAR + hour * HOUR_MS, _YEAR + (hour + 1) * HOUR_MS, GPU_PARTS) for hour in range(13)]
    )
    balances = Balances(usage)
    first = balances.of(budget, ["team"], (), (), _YEAR + 20 * HOUR_MS)["team"]
    assert (first.limit, first.left) == (15 * GPU_HOUR, 2 * GPU_HOUR)
    second = balances.of(budget, ["team"], (), (), _YEAR + 30 * HOUR_MS)["team"]
    assert second.limit == (10 - 3 + 5) * GPU_HOUR
    assert timedelta(milliseconds=second.window_start - first.window_start) == timedelta(days=1)
