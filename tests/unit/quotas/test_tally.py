"""The arithmetic of quotas: reserving, counting, and what a denial says."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.quotas.schema import Count, Reservation, Scope, TallySpec, User
from gpuslice.quotas.tally import (
    LARGEST,
    MOST_RESERVATIONS,
    Charge,
    Counted,
    OverQuotaError,
    TooManyReservationsError,
    recount,
    reserve,
)

GIB = 2**30


def charge(**amounts: int) -> Charge:
    return Charge(amounts=amounts)


def test_a_pod_that_fits_is_in_the_tally_and_the_next_one_sees_it() -> None:
    tally = TallySpec({"GpuQuota/a": Count({"memory": 4}, {"memory": 1})})
    tally = reserve(tally, "u1", "one", charge(memory=2, cores=50))
    assert tally.quotas["GpuQuota/a"].used == {"memory": 3}
    assert tally.reservations == {"u1": Reservation("one", {"GpuQuota/a": {"memory": 2}})}
    with pytest.raises(OverQuotaError):
        reserve(tally, "u2", "two", charge(memory=2))


def test_a_pod_that_is_asked_about_twice_is_reserved_once() -> None:
    once = reserve(TallySpec({"GpuQuota/a": Count({"memory": 4}, {})}), "u1", "one", charge(memory=3))
    assert reserve(once, "u1", "one", charge(memory=3)) is once


def test_a_pod_that_no_quota_counts_changes_nothing() -> None:
    full = TallySpec({"GpuQuota/a": Count({"cores": 0}, {"cores": 100})})
    assert reserve(full, "u1", "one", charge(memory=3)) is full


def test_two_quotas_are_reserved_together_or_not_at_all() -> None:
    tally = TallySpec({"GpuQuota/a": Count({"memory": 9}, {}), "GpuQuota/b": Count({"devices": 1}, {"devices": 1})})
    with pytest.raises(OverQuotaError, match="GpuQuota/b"):
        reserve(tally, "u1", "one", charge(memory=1, devices=1))
    assert tally.quotas["GpuQuota/a"].used == {}


def test_a_denial_says_what_is_asked_used_and_left_and_by_which_pods() -> None:
    users = (User("small", {"memory": GIB}), User("large", {"memory": 35 * GIB}))
    tally = TallySpec({"GpuQuota/all": Count({"memory": 40 * GIB}, {"memory": 36 * GIB}, (), users)})
    with pytest.raises(OverQuotaError) as told:
        reserve(tally, "u1", "one", charge(memory=8 * GIB))
    assert str(told.value) == (
        "GpuQuota/all: the pod is charged 8Gi of memory, but of 40Gi in all 36Gi are used and 4Gi are left; most of it "
        "is held by large (35Gi), small (1Gi); ask for less, end other pods, or have the quota raised"
    )


def test_reservations_have_a_bound() -> None:
    many = {f"u{number}": Reservation("", {}) for number in range(MOST_RESERVATIONS)}
    with pytest.raises(TooManyReservationsError, match="try again"):
        reserve(TallySpec({"GpuQuota/a": Count({"memory": 9}, {})}, many), "new", "one", charge(memory=1))


def test_a_reservation_goes_in_the_write_in_which_its_pod_is_counted() -> None:
    quotas = {"GpuQuota/a": Count({"memory": 9}, {})}
    reserved = TallySpec(quotas)
    for number in range(3):
        reserved = reserve(reserved, f"u{number}", f"p{number}", charge(memory=2))
    counted = recount(quotas, [Counted("u0", "p0", charge(memory=2))], reserved, expired={"u1"})
    assert counted.quotas["GpuQuota/a"].used == {"memory": 4}
    assert set(counted.reservations) == {"u2"}


def test_a_pod_that_has_ended_holds_nothing_and_its_reservation_goes() -> None:
    quotas = {"GpuQuota/a": Count({"memory": 9}, {})}
    reserved = reserve(TallySpec(quotas), "u0", "p0", charge(memory=2))
    counted = recount(quotas, [Counted("u0", "p0", charge(memory=2), finished=True)], reserved, ())
    assert counted == TallySpec({"GpuQuota/a": Count({"memory": 9}, {"memory": 0})})


def test_a_quota_that_was_lowered_keeps_what_is_used_above_it() -> None:
    quotas = {"GpuQuota/a": Count({"memory": 1}, {})}
    counted = recount(quotas, [Counted("u0", "p0", charge(memory=5))], TallySpec(), ())
    assert counted.quotas["GpuQuota/a"].used == {"memory": 5}
    with pytest.raises(OverQuotaError, match="0 are left"):
        reserve(counted, "u1", "p1", charge(memory=1))


def test_of_a_thousand_pods_only_the_largest_are_named() -> None:
    pods = [Counted(f"u{number}", f"p{number}", charge(memory=number)) for number in range(1, 1001)]
    counted = recount({"GpuQuota/a": Count({"memory": 10**6}, {})}, pods, TallySpec(), ())
    assert [user.pod for user in counted.quotas["GpuQuota/a"].largest] == ["p1000", "p999", "p998", "p997", "p996"]
    assert len(msgspec.json.encode(counted)) < 1000
    assert LARGEST == 5


@pytest.mark.parametrize(
    ("scope", "pod", "counts"),
    [
        (Scope("Terminating"), Charge(amounts={"memory": 1}, terminating=True), True),
        (Scope("Terminating"), Charge(amounts={"memory": 1}), False),
        (Scope("NotTerminating"), Charge(amounts={"memory": 1}), True),
        (Scope("PriorityClass", "In", ("high",)), Charge(amounts={"memory": 1}, priority_class="high"), True),
        (Scope("PriorityClass", "In", ("high",)), Charge(amounts={"memory": 1}), False),
        (Scope("PriorityClass", "NotIn", ("high",)), Charge(amounts={"memory": 1}), True),
        (Scope("PriorityClass"), Charge(amounts={"memory": 1}), False),
        (Scope("PriorityClass", "DoesNotExist"), Charge(amounts={"memory": 1}), True),
        (Scope("SomethingNew"), Charge(amounts={"memory": 1}), True),
    ],
)
def test_scopes_are_those_of_kubernetes(scope: Scope, pod: Charge, *, counts: bool) -> None:
    tally = reserve(TallySpec({"ResourceQuota/a": Count({"memory": 9}, {}, (scope,))}), "u", "p", pod)
    assert bool(tally.reservations) == counts


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["create", "see", "end", "lose"])), max_size=40))
def test_whatever_happens_used_is_what_pods_hold_and_what_is_reserved(steps: list[tuple[int, str]]) -> None:
    """Pods are admitted, seen by the controller, ended, or never come: never more than the limit is held."""
    quotas = {"GpuQuota/a": Count({"memory": 12}, {})}
    tally, pods, waiting, lost = TallySpec(quotas), dict[str, Counted](), dict[str, Counted](), set[str]()
    for number, (size, what) in enumerate(steps):
        uid = f"u{number}"
        if what == "create":
            try:
                tally = reserve(tally, uid, uid, charge(memory=size))
                waiting[uid] = Counted(uid, uid, charge(memory=size))
            except OverQuotaError:
                assert tally.quotas["GpuQuota/a"].used["memory"] + size > 12
        elif what == "see" and waiting:
            key = next(iter(waiting))
            pods[key] = waiting.pop(key)
        elif what == "end" and pods:
            del pods[next(iter(pods))]
        elif what == "lose" and waiting:
            lost.add(next(iter(waiting)))
            del waiting[next(iter(waiting))]
        tally = recount(quotas, list(pods.values()), tally, lost)
        held = sum(each.charge.amounts["memory"] for each in (*pods.values(), *waiting.values()))
        assert tally.quotas["GpuQuota/a"].used["memory"] == held <= 12
