"""Of every GPU and hour, charges, idle and system add up to the hour, whatever comes and goes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.accounting import charges
from gpuslice.accounting.charges import GPU_HOUR, GPU_PARTS, WHOLE_GPU, ChargeBy, Share
from gpuslice.accounting.metering import HOUR_MS, Account, Entry, Gpu, Holding, Kind, Meter

_START = 480_000 * HOUR_MS


@given(st.lists(st.integers(0, 3 * GPU_PARTS), max_size=20), st.integers(1, 8 * GPU_PARTS))
def test_apportioned_weights_never_exceed_the_gpu_and_fill_it_when_they_would(weights: list[int], most: int) -> None:
    given_parts = charges.apportion(weights, most)
    assert sum(given_parts) == min(sum(weights), most)
    for weight, parts in zip(weights, given_parts, strict=True):
        assert 0 <= parts <= weight
        if sum(weights) > most:
            assert abs(parts - weight * most / sum(weights)) < 1


@given(st.integers(0, GPU_PARTS), st.integers(1, 50))
def test_pods_that_share_a_claim_share_its_charge(parts: int, count: int) -> None:
    shares = charges.divide(parts, count)
    assert sum(shares) == parts
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("share", "by", "weight"),
    [
        (Share(250_000, 500_000), ChargeBy.MAXIMUM, 500_000),
        (Share(250_000), ChargeBy.MAXIMUM, 250_000),
        (Share(250_000, 500_000), ChargeBy.MEMORY, 250_000),
        (Share(250_000, 100_000), ChargeBy.CORES, 100_000),
        (Share(250_000), ChargeBy.CORES, GPU_PARTS),
        (Share(1), ChargeBy.WHOLE, GPU_PARTS),
        (WHOLE_GPU, ChargeBy.MAXIMUM, GPU_PARTS),
    ],
)
def test_a_slice_weighs_what_its_policy_says(share: Share, by: ChargeBy, weight: int) -> None:
    assert charges.weigh(share, by) == weight


_pods = st.lists(st.sampled_from([("u1", "one"), ("u2", "two"), ("u3", "three")]), max_size=3, unique=True).map(tuple)
_holding = st.builds(
    Holding,
    claim=st.sampled_from(["a", "b", "c", "d"]),
    namespace=st.just("team"),
    weight=st.integers(0, GPU_PARTS),
    pods=_pods,
    since=st.none() | st.integers(_START, _START + 30 * HOUR_MS),
)
_change = st.tuples(
    st.sampled_from(["observe", "cut", "restart"]),
    st.integers(0, 3 * HOUR_MS),
    st.sampled_from([GPU_PARTS, 2 * GPU_PARTS]),
    st.booleans(),
    st.lists(_holding, max_size=4, unique_by=lambda each: each.claim),
)


@given(st.lists(_change, max_size=25))
def test_the_time_of_a_gpu_is_charged_idle_or_the_systems_to_the_millisecond(changes: list[tuple[object, ...]]) -> None:
    """Claims come and go, are shared, the GPU falls ill, grows, and processes take over."""
    meter, entries, now, parts = Meter(), [], _START, GPU_PARTS
    expected: Counter[int] = Counter()
    meter.observe(Gpu("gpu"), (), now)
    for kind, step, size, usable, holdings in changes:
        before, now = now, now + step  # type: ignore[operator]
        for hour in range(before // HOUR_MS, -(-now // HOUR_MS)):
            expected[hour] += parts * (min(now, (hour + 1) * HOUR_MS) - max(before, hour * HOUR_MS))
        if kind == "cut":
            entries += meter.cut(now)
            continue
        gpu = Gpu("gpu", parts=size, usable=usable)  # type: ignore[arg-type]
        if kind == "restart":
            meter = _taken_over(meter, before)
            entries += meter.reconcile(gpu, holdings, before, now)  # type: ignore[arg-type]
        else:
            entries += meter.observe(gpu, holdings, now)  # type: ignore[arg-type]
        parts = meter.accounts["gpu"].gpu.parts
    entries += meter.remove("gpu", now)
    found: Counter[int] = Counter()
    for entry in entries:
        assert entry.start < entry.until
        assert entry.start // HOUR_MS == (entry.until - 1) // HOUR_MS, "an entry is of one hour"
        found[entry.start // HOUR_MS] += entry.amount
    assert +found == +expected
    keys = [(each.holder.claim, each.holder.pod, each.gpu, each.start) for each in entries]
    assert len(set(keys)) == len(keys), "a key is there once"


def _taken_over(meter: Meter, sampled: int) -> Meter:
    """Another process, with what the ledger knows."""
    other = Meter()
    other.resume([Account(each.gpu, each.since, each.holdings) for each in meter.accounts.values()], sampled)
    return other


def _whole_hour(entries: list[Entry]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for entry in entries:
        found[entry.holder.namespace or entry.kind] += entry.amount
    return dict(found)


def test_four_quarters_for_an_hour_are_one_gpu_hour() -> None:
    meter = Meter()
    quarters = [Holding(name, name, GPU_PARTS // 4) for name in "abcd"]
    meter.observe(Gpu("gpu"), quarters, _START)
    assert _whole_hour(meter.cut(_START + HOUR_MS)) == dict.fromkeys("abcd", GPU_HOUR // 4)


def test_an_unhealthy_gpu_is_not_idle() -> None:
    meter = Meter()
    meter.observe(Gpu("gpu", usable=False), [Holding("a", "team", 400_000)], _START)
    assert _whole_hour(meter.cut(_START + HOUR_MS)) == {
        "team": GPU_HOUR * 4 // 10,
        str(Kind.SYSTEM): GPU_HOUR * 6 // 10,
    }


def test_who_left_while_nobody_looked_is_charged_until_the_last_look_and_who_came_from_when_it_came() -> None:
    sampled, now = _START + 10_000, _START + 25_000
    meter = Meter()
    meter.resume([Account(Gpu("gpu"), _START, {"old": Holding("old", "old", GPU_PARTS)})], sampled)
    came = Holding("new", "new", GPU_PARTS, since=_START + 13_000)
    entries = meter.reconcile(Gpu("gpu"), [came], sampled, now) + meter.remove("gpu", now)
    assert [(each.holder.namespace or each.kind, each.start, each.until) for each in entries] == [
        ("old", _START, sampled),
        (Kind.IDLE, sampled, _START + 13_000),
        ("new", _START + 13_000, now),
    ]


def test_what_runs_is_known_without_an_entry() -> None:
    meter = Meter()
    meter.observe(Gpu("gpu", price=7), [Holding("a", "team", 500_000)], _START)
    assert meter.rates("team") == {7: 500_000}
    assert meter.running(_START + 1000, _START + 3000) == {"team": {7: 500_000 * 2000}}
    meter.observe(Gpu("gpu", price=7), [], _START + 3000)
    assert meter.rates("team") == {}


def test_a_clock_that_steps_back_makes_no_time_undone_or_charged_twice() -> None:
    meter, later = Meter(), _START + 60_000
    meter.observe(Gpu("gpu"), [Holding("a", "a", GPU_PARTS)], _START)
    entries = meter.observe(Gpu("gpu"), [Holding("b", "b", GPU_PARTS)], later)
    entries += meter.observe(Gpu("gpu"), [Holding("c", "c", GPU_PARTS)], later - 30_000)
    entries += meter.remove("gpu", later + 1000)
    assert [(each.holder.namespace, each.start, each.until) for each in entries] == [
        ("a", _START, later),
        ("c", later, later + 1000),
    ]
