"""The ledger on SQLite and on PostgreSQL: nothing twice, nothing lost, and sums that agree with the entries."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuslice.accounting.budgets.balance import Credit
from gpuslice.accounting.charges import GPU_HOUR, GPU_PARTS
from gpuslice.accounting.ledger import migrations
from gpuslice.accounting.ledger.database import LedgerError
from gpuslice.accounting.ledger.ledger import Ledger, TermOverError
from gpuslice.accounting.ledger.usage import Query, usage
from gpuslice.accounting.metering import HOUR_MS
from tests.ledger.making import DAY, YEAR, account, charge, days_of_entries, idle
from tests.unit.accounting.reference import MemoryUsage


def test_an_entry_that_is_written_again_changes_nothing(ledger: Ledger) -> None:
    ledger.begin()
    entries = [charge("a", YEAR, YEAR + 1000), charge("b", YEAR, YEAR + 1000), idle(YEAR + 1000, YEAR + 2000)]
    assert ledger.append(entries, (), (), YEAR) == 3
    assert ledger.append([*entries, charge("a", YEAR + 1000, YEAR + 3000)], (), (), YEAR) == 1
    assert ledger.append(entries + entries, (), (), YEAR) == 0
    assert ledger.totals(YEAR, YEAR + HOUR_MS) == {"a": {0: 3000 * GPU_PARTS}, "b": {0: 1000 * GPU_PARTS}}
    assert ledger.totals(YEAR, YEAR + DAY) == ledger.totals(YEAR, YEAR + HOUR_MS)


def test_any_time_adds_up_as_the_entries_do(ledger: Ledger) -> None:
    entries = days_of_entries(6)
    plain, dice = MemoryUsage(entries), random.Random(7)  # noqa: S311 - the same every time
    ledger.begin()
    for first in range(0, len(entries), 50):
        ledger.append(entries[first : first + 50], (), (), YEAR)
    for _ in range(150):
        start = YEAR + dice.randrange(-DAY, 7 * DAY)
        until = start + dice.choice([0, 1, 1000, HOUR_MS, 90 * 60_000, DAY, 3 * DAY]) + dice.randrange(HOUR_MS)
        if dice.random() < 0.3:  # bounds as windows have them
            start, until = start // HOUR_MS * HOUR_MS, until // HOUR_MS * HOUR_MS
        assert ledger.totals(start, until) == plain.totals(start, until), (start, until)
    for first, last in ((YEAR, YEAR + 6 * DAY), (YEAR + 5 * HOUR_MS, YEAR + 9 * HOUR_MS)):
        expected: dict[tuple[str, int, int], int] = {}
        for name, price, hour, amount in plain.hours(first, last):
            expected[name, price, hour] = expected.get((name, price, hour), 0) + amount
        assert {each[:3]: each[3] for each in ledger.hours(first, last)} == expected


def test_what_is_old_is_known_by_the_day_and_no_sum_changes(ledger: Ledger) -> None:
    entries = days_of_entries(8)
    ledger.begin()
    ledger.append(entries, (), (), YEAR)
    before = ledger.totals(YEAR, YEAR + 9 * DAY)
    monday = ledger.totals(YEAR + DAY, YEAR + 2 * DAY)
    late = ledger.totals(YEAR + 6 * DAY + 1234, YEAR + 7 * DAY + 5678)
    assert ledger.forget(YEAR + 5 * DAY + 7, YEAR + 3 * DAY + 7) > 0
    assert ledger.forget(YEAR + 5 * DAY + 7, YEAR + 3 * DAY + 7) == 0
    assert ledger.totals(YEAR, YEAR + 9 * DAY) == before
    assert ledger.totals(YEAR + DAY, YEAR + 2 * DAY) == monday
    assert ledger.totals(YEAR + 6 * DAY + 1234, YEAR + 7 * DAY + 5678) == late, "young entries are all there"
    summed: dict[str, int] = {}
    for name, _, _, amount in ledger.hours(YEAR, YEAR + 9 * DAY):
        summed[name] = summed.get(name, 0) + amount
    assert summed == {name: sum(by_price.values()) for name, by_price in before.items()}
    # A part of a day that is only known as a whole: evenly.
    half = ledger.totals(YEAR + DAY, YEAR + DAY + 12 * HOUR_MS)
    assert half == {name: {price: amount // 2 for price, amount in found.items()} for name, found in monday.items()}


def test_a_process_whose_term_is_over_writes_nothing(address: str, ledger: Ledger) -> None:
    with pytest.raises(TermOverError):
        ledger.append([charge("a", YEAR, YEAR + 1)], (), (), YEAR)
    ledger.begin()
    ledger.append((), [account("gpu", YEAR)], (), YEAR + 5000)
    other = Ledger.open(address)
    accounts, sampled = other.begin()
    assert (sampled, [(each.gpu, each.since, each.holdings) for each in accounts]) == (
        YEAR + 5000,
        [(each.gpu, each.since, each.holdings) for each in [account("gpu", YEAR)]],
    )
    with pytest.raises(TermOverError, match="another process writes"):
        ledger.append([charge("a", YEAR, YEAR + 1)], [account("gpu", YEAR + 9)], (), YEAR + 9000)
    assert other.append((), (), ["gpu"], YEAR + 6000) == 0
    assert (other.begin(), other.totals(YEAR, YEAR + DAY)) == (([], YEAR + 6000), {})
    other.close()


def test_the_time_of_the_last_look_never_goes_back(ledger: Ledger) -> None:
    ledger.begin()
    ledger.append((), (), (), YEAR)
    ledger.append((), (), (), YEAR - 1000)
    assert ledger.begin()[1] == YEAR


def test_sums_above_64_bits(ledger: Ledger) -> None:
    ledger.begin()
    gpus = 90_000 * GPU_PARTS
    hours = [YEAR + hour * HOUR_MS for hour in range(72)]
    ledger.append([charge("big", hour, hour + HOUR_MS, gpus) for hour in hours], (), (), YEAR)
    total = 72 * gpus * HOUR_MS
    assert total > 2**64
    assert ledger.totals(YEAR, YEAR + 3 * DAY) == {"big": {0: total}}
    assert ledger.totals(YEAR + 1, YEAR + 3 * DAY) == {"big": {0: total - gpus}}
    (found,) = usage(ledger, Query(start=YEAR, until=YEAR + 3 * DAY))
    assert found.amount == total


def test_credits_say_who_and_why_and_are_given_once(ledger: Ledger) -> None:
    credit = Credit("b", "team", 10**20, YEAR, "ada", "a paper's deadline", "k1")
    assert ledger.give_credit(credit)
    assert not ledger.give_credit(credit)
    other = Credit("other", "team", GPU_HOUR, YEAR - 1, "ada", "because", "k2")
    assert ledger.give_credit(other)
    assert (ledger.credits("b"), ledger.credits()) == ([credit], [other, credit])


def test_tables_of_a_newer_version_are_left_alone(address: str, ledger: Ledger) -> None:
    ledger.database.execute("INSERT INTO migration (number) VALUES (?)", (len(migrations.MIGRATIONS) + 1,))
    with pytest.raises(LedgerError, match="written by a newer gpuslice"):
        Ledger.open(address)


def test_processes_that_open_a_new_ledger_at_once_make_one(address: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: Ledger.open(address), range(8)))
    terms = [each.begin() for each in opened]
    assert len(terms) == 8
    assert opened[0].database.query("SELECT number FROM migration") == [
        (number + 1,) for number in range(len(migrations.MIGRATIONS))
    ]
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("mysql://here", "neither SQLite nor PostgreSQL"),
        ("sqlite:", "name a file"),
        ("sqlite:/", "name a file"),
        ("sqlite:/nowhere/at/all.sqlite3", "cannot be used"),
        ("postgresql://gpuslice@127.0.0.1:1/none", "does not answer"),
    ],
)
def test_an_address_that_leads_nowhere_is_said_so(written: str, complaint: str) -> None:
    with pytest.raises(LedgerError, match=complaint):
        Ledger.open(written)
