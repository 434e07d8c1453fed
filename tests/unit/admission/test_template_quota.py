"""A namespace gets as many claim templates as its pods use, and a limited number ahead of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.admission.cluster import template_quota
from gpuslice.admission.cluster.template_quota import MOST, MOST_UNUSED, YOUNG_SECONDS, QuotaError, TemplateQuota


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def _make(quota: TemplateQuota, count: int, *, namespace: str = "team", start: int = 0) -> None:
    """Makes them, and hears of each by the watch."""
    for number in range(start, start + count):
        key = (namespace, f"t{number}")
        quota.reserve(key)
        quota.heard(key, was=None, marked=False, fresh=True)


def test_so_many_are_made_ahead_of_their_pods_and_no_more() -> None:
    quota = TemplateQuota(Clock())
    _make(quota, MOST_UNUSED)
    with pytest.raises(QuotaError, match="namespace team has 100 claim templates that no pod uses yet, and at most"):
        quota.reserve(("team", "one-more"))
    _make(quota, MOST_UNUSED, namespace="other")


def test_those_that_the_controller_leaves_alone_are_used_and_do_not_count() -> None:
    clock = Clock()
    quota = TemplateQuota(clock)
    for start in range(0, 5 * MOST_UNUSED, MOST_UNUSED):
        _make(quota, MOST_UNUSED, start=start)
        clock.seconds += YOUNG_SECONDS


def test_those_that_it_marks_count_until_they_are_removed_or_needed() -> None:
    clock = Clock()
    quota = TemplateQuota(clock)
    _make(quota, MOST_UNUSED)
    for number in range(MOST_UNUSED):
        quota.heard(("team", f"t{number}"), was=False, marked=True, fresh=True)
    clock.seconds += 10 * YOUNG_SECONDS
    with pytest.raises(QuotaError):
        quota.reserve(("team", "one-more"))
    quota.heard(("team", "t0"), was=True, marked=None, fresh=True)
    quota.heard(("team", "t1"), was=True, marked=False, fresh=True)
    _make(quota, 1, start=MOST_UNUSED)
    with pytest.raises(QuotaError):  # the other has only just been needed again
        quota.reserve(("team", "one-more"))
    clock.seconds += YOUNG_SECONDS
    quota.reserve(("team", "one-more"))


def test_what_could_not_be_made_does_not_count() -> None:
    quota = TemplateQuota(Clock())
    for number in range(2 * MOST_UNUSED):
        quota.reserve(("team", f"t{number}"))
        quota.release(("team", f"t{number}"))
    _make(quota, MOST_UNUSED)


def test_what_was_there_at_the_start_counts_as_used() -> None:
    quota = TemplateQuota(Clock())
    for number in range(5 * MOST_UNUSED):
        quota.heard(("team", f"old{number}"), was=None, marked=False, fresh=False)
    _make(quota, MOST_UNUSED)


def test_without_a_controller_there_is_an_end_as_well() -> None:
    clock = Clock()
    quota = TemplateQuota(clock)
    for start in range(0, MOST, MOST_UNUSED):
        _make(quota, MOST_UNUSED, start=start)
        clock.seconds += YOUNG_SECONDS
    with pytest.raises(QuotaError, match=f"has {MOST} claim templates, and at most {MOST} are made"):
        quota.reserve(("team", "one-more"))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, False, True]), st.booleans())))
def test_nothing_is_left_of_a_namespace_that_is_empty(steps: list[tuple[str, bool | None, bool]]) -> None:
    quota, there = TemplateQuota(Clock()), dict[str, bool | None]()
    for name, marked, fresh in steps:
        if there.get(name) is not marked:
            quota.heard(("team", name), was=there.get(name), marked=marked, fresh=fresh)
            there[name] = marked
            tally = quota._tallies.get("team", template_quota._Tally())
            assert tally.known == sum(state is not None for state in there.values())
            assert tally.marked == sum(state is True for state in there.values())
            assert set(tally.young) <= {name for name, state in there.items() if state is False}
    for name, state in there.items():
        if state is not None:
            quota.heard(("team", name), was=state, marked=None, fresh=True)
    assert not quota._tallies
