"""What people and other programs read from the ledger."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from gpuslice.accounting.charges import GPU_PARTS
from gpuslice.accounting.ledger import export
from gpuslice.accounting.ledger.database import LedgerError
from gpuslice.accounting.ledger.usage import Query, usage
from gpuslice.accounting.metering import HOUR_MS, Kind
from tests.ledger.making import DAY, YEAR, charge, days_of_entries, idle
from tests.unit.accounting.reference import MemoryUsage

if TYPE_CHECKING:
    from gpuslice.accounting.ledger.ledger import Ledger

_HALF = GPU_PARTS // 2
_PRICE = 2_500_000


@pytest.fixture
def filled(ledger: Ledger) -> Ledger:
    """Two days: team a holds half of an A100 for two hours and a T4 for one, team b a quarter for one."""
    ledger.begin()
    a100 = {"price": _PRICE, "model": "A100-40GB"}
    ledger.append(
        [
            charge("a", YEAR, YEAR + HOUR_MS, _HALF, pod="train", **a100),  # type: ignore[arg-type]
            charge("a", YEAR + DAY, YEAR + DAY + HOUR_MS, _HALF, pod="train", **a100),  # type: ignore[arg-type]
            charge("a", YEAR + DAY, YEAR + DAY + HOUR_MS, pod="serve", model="T4", gpu="t4"),
            charge("b", YEAR, YEAR + HOUR_MS, _HALF // 2, pod="x", **a100),  # type: ignore[arg-type]
            idle(YEAR, YEAR + HOUR_MS, _HALF // 2),
        ],
        (), (), YEAR,
    )  # fmt: skip
    return ledger


def _all(*by: str, namespaces: frozenset[str] | None = None) -> Query:
    return Query(start=YEAR, until=YEAR + 2 * DAY, by=by, namespaces=namespaces)


def test_usage_by_namespace_has_what_was_idle(filled: Ledger) -> None:
    assert [(each.group, each.kind, each.gpu_hours, each.money) for each in usage(filled, _all("namespace"))] == [
        ({"namespace": "a"}, Kind.CHARGE, 2.0, _PRICE),
        ({"namespace": ""}, Kind.IDLE, 0.25, 0),
        ({"namespace": "b"}, Kind.CHARGE, 0.25, _PRICE // 4),
    ]


def test_usage_by_anything_within_bounds(filled: Ledger) -> None:
    by_day = usage(filled, _all("day", "namespace", namespaces=frozenset({"a"})))
    assert [(each.group["day"], each.gpu_hours) for each in by_day] == [("2027-01-01", 0.5), ("2027-01-02", 1.5)]
    by_pod = usage(filled, _all("namespace", "pod", namespaces=frozenset({"a", "b"})))
    assert [(each.group["pod"], each.gpu_hours) for each in by_pod] == [("serve", 1.0), ("train", 1.0), ("x", 0.25)]
    assert [
        (each.group["model"], each.gpu_hours) for each in usage(filled, _all("model")) if each.kind == "charge"
    ] == [
        ("A100-40GB", 1.25),
        ("T4", 1.0),
    ]
    assert usage(filled, _all("namespace", namespaces=frozenset())) == []
    first_day = Query(start=YEAR, until=YEAR + DAY, by=("hour", "gpu", "node"))
    assert {each.group["hour"] for each in usage(filled, first_day)} == {"2027-01-01T00:00:00Z"}


def test_what_is_not_kept_is_not_shown_as_nothing(filled: Ledger) -> None:
    filled.forget(YEAR + DAY, YEAR + DAY)
    with pytest.raises(LedgerError, match="usage by pod is kept since 2027-01-02T00:00:00Z only"):
        usage(filled, _all("pod"))
    assert sum(each.gpu_hours for each in usage(filled, _all("namespace")) if each.kind == "charge") == 2.25
    with pytest.raises(LedgerError, match="usage by 'colour': usage is known by namespace"):
        usage(filled, _all("colour"))


def test_exports_say_the_same(filled: Ledger) -> None:
    found = usage(filled, _all("namespace"))
    as_json = json.loads(export.to_json(found, "EUR"))
    as_csv = list(csv.DictReader(io.StringIO(export.to_csv(found, ("namespace",), "EUR"))))
    assert as_json == as_csv
    assert as_json[0] == {"namespace": "a", "kind": "charge", "gpuHours": "2", "cost": "2.5", "currency": "EUR"}
    focus = list(csv.DictReader(io.StringIO(export.to_focus(filled, _all(), "EUR"))))
    assert list(focus[0]) == list(export.FOCUS_COLUMNS)
    assert sum(Decimal(row["BilledCost"]) for row in focus) == Decimal("3.125")
    assert sum(Decimal(row["ConsumedQuantity"]) for row in focus) == Decimal("2.25")
    assert {row["SubAccountId"] for row in focus} == {"a", "b"}
    train = next(row for row in focus if row["ResourceName"] == "A100-40GB" and row["SubAccountId"] == "a")
    assert (train["ListUnitPrice"], train["BillingPeriodEnd"]) == ("2.5", "2027-02-01T00:00:00Z")
    assert (train["ChargePeriodStart"], train["ChargePeriodEnd"]) == ("2027-01-01T00:00:00Z", "2027-01-02T00:00:00Z")


@pytest.mark.parametrize(
    ("amount", "whole", "text"),
    [(1, 3, "0.333333"), (5, 2, "2.5"), (10, 5, "2"), (-1, 2, "-0.5"), (-1, 10**9, "0"), (0, 1, "0"), (100, 1, "100")],
)
def test_numbers_are_decimal_and_exact(amount: int, whole: int, text: str) -> None:
    assert export.decimal(amount, whole) == text


def test_usage_of_any_hours_is_that_of_its_entries(ledger: Ledger) -> None:
    entries = days_of_entries(4)
    ledger.begin()
    ledger.append(entries, (), (), YEAR)
    for first, last in ((0, 96), (3, 7), (20, 30), (5, 90), (24, 48), (30, 31)):
        start, until = YEAR + first * HOUR_MS, YEAR + last * HOUR_MS
        expected = {name: sum(found.values()) for name, found in MemoryUsage(entries).totals(start, until).items()}
        by_sums = usage(ledger, Query(start=start, until=until))
        by_entries = usage(ledger, Query(start=start, until=until, by=("namespace", "pod")))
        for found in (by_sums, by_entries):
            assert {each.group["namespace"]: each.amount for each in found if each.kind is Kind.CHARGE} == expected
