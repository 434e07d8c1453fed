"""Disks fill, databases go away, processes are killed: what was acknowledged is there, and the rest can be written."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuslice.accounting.ledger.database import LedgerError, LedgerUnavailableError
from gpuslice.accounting.ledger.ledger import Ledger
from gpuslice.accounting.metering import HOUR_MS
from tests.ledger.making import DAY, YEAR, account, charge, days_of_entries
from tests.unit.accounting.reference import MemoryUsage

if TYPE_CHECKING:
    from tests.ledger.postgres import Postgres


def test_a_full_disk_is_said_and_what_was_refused_is_written_when_there_is_room(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:{tmp_path / 'ledger.sqlite3'}")
    ledger.begin()
    ledger.append([charge("a", YEAR, YEAR + 1000)], [account("gpu", YEAR)], (), YEAR)
    ((pages,),) = ledger.database.query("PRAGMA page_count")
    ledger.database.execute(f"PRAGMA max_page_count = {pages}")
    many = days_of_entries(3)
    with pytest.raises(LedgerUnavailableError, match=r"the disk of the SQLite file .* is full"):
        ledger.append(many, (), ["gpu"], YEAR + 5000)
    assert ledger.totals(YEAR, YEAR + HOUR_MS) == {"a": {0: 1_000_000_000}}, "nothing of it was written"
    ledger.database.execute("PRAGMA max_page_count = 1000000")
    assert ledger.append(many, (), ["gpu"], YEAR + 5000) == len(many)
    assert ledger.begin() == ([], YEAR + 5000)
    ledger.close()


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(b"this is no database, but someone put it here" * 100)
    with pytest.raises(LedgerError, match=r"is damaged .* Put a backup in its place"):
        Ledger.open(f"sqlite:{path}")


def test_a_database_that_went_away_is_said_and_used_again_when_it_is_back(postgres: Postgres) -> None:
    ledger = Ledger.open(postgres.new_database())
    ledger.begin()
    ledger.append([charge("a", YEAR, YEAR + 1000)], (), (), YEAR)
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(LedgerUnavailableError, match=r"PostgreSQL database .* does not answer") as failure:
                ledger.append([charge("a", YEAR + 1000, YEAR + 2000)], (), (), YEAR)
            assert "host=" not in str(failure.value).split("does not answer")[0]
    finally:
        postgres.start()
    assert ledger.append([charge("a", YEAR + 1000, YEAR + 2000)], (), (), YEAR) == 1
    assert ledger.totals(YEAR, YEAR + HOUR_MS) == {"a": {0: 2_000_000_000}}
    ledger.close()


_WRITER = """
import sys
from gpuslice.accounting.ledger.ledger import Ledger
from tests.ledger.making import YEAR, account, charge
ledger = Ledger.open(sys.argv[1])
accounts, sampled = ledger.begin()
at = max([YEAR, *(each.since for each in accounts)])
while True:
    ledger.append([charge("a", at, at + 10), charge("b", at, at + 10)], [account("gpu", at + 10, "a")], (), at)
    at += 10
    print(at, flush=True)
"""


def test_what_a_killed_process_had_acknowledged_is_there_and_its_successor_goes_on(address: str) -> None:
    """Each is killed at any moment; the next goes on from what is open. Nothing is missing, and nothing there twice."""
    acknowledged = YEAR
    for turn in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, address], stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert writer.stdout is not None
        for _ in range(3 + 5 * turn):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
    ledger = Ledger.open(address)
    ((opened,), _) = ledger.begin()
    assert opened.since >= acknowledged
    assert opened.since <= acknowledged + 10, "one write at most was done and not acknowledged"
    assert ledger.totals(YEAR, YEAR + DAY) == {name: {0: (opened.since - YEAR) * 1_000_000} for name in ("a", "b")}
    ledger.close()


def test_a_backup_of_yesterday_is_put_back_and_what_is_known_is_written_again(
    address: str, ledger: Ledger, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """By the databases' own means, as docs/budgets.md tells it."""
    entries = days_of_entries(2)
    half = len(entries) // 2
    ledger.begin()
    ledger.append(entries[:half], [account("gpu", YEAR)], (), YEAR + 1000)
    if address.startswith("sqlite:"):
        path = Path(address.removeprefix("sqlite:"))
        backup = tmp_path / "backup.sqlite3"
        ledger.database.execute("VACUUM INTO ?", (str(backup),))
        ledger.append(entries[half:], (), ["gpu"], YEAR + DAY)
        ledger.close()
        for leftover in path.parent.glob(f"{path.name}-*"):
            leftover.unlink()
        shutil.copy(backup, path)
    else:
        server: Postgres = request.getfixturevalue("postgres")
        name = address.partition("@/")[2].partition("?")[0]
        dump = server.run("pg_dump", "--dbname", name, "--clean", "--if-exists")
        ledger.append(entries[half:], (), ["gpu"], YEAR + DAY)
        ledger.close()
        server.run("psql", "--quiet", "--dbname", name, "--set=ON_ERROR_STOP=1", standard_input=dump)
    restored = Ledger.open(address)
    accounts, sampled = restored.begin()
    assert ([each.gpu.name for each in accounts], sampled) == (["gpu"], YEAR + 1000)
    assert restored.totals(YEAR, YEAR + 3 * DAY) == MemoryUsage(entries[:half]).totals(YEAR, YEAR + 3 * DAY)
    assert restored.append(entries, (), (), YEAR + DAY) == len(entries) - half
    assert restored.totals(YEAR, YEAR + 3 * DAY) == MemoryUsage(entries).totals(YEAR, YEAR + 3 * DAY)
    restored.close()


def test_a_file_that_another_process_writes_to_can_be_read_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    ledger = Ledger.open(f"sqlite:{path}")
    ledger.begin()
    with ledger.database.transaction():
        ledger.database.execute("UPDATE meter SET sampled = 1 WHERE id = 1")
        with sqlite3.connect(path) as other:
            assert other.execute("SELECT sampled FROM meter").fetchall() == [(0,)]
        other.close()
    ledger.close()
