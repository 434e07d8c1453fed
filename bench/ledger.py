"""The ledger beside plain SQL on the same data: appends, a month's report, a month's balances; and its size.

`python -m bench.ledger` shows a table and writes `bench/results/ledger.json`. With `--entries 10000000` the month is as
long as that of 1,000 namespaces with 14 slices each. Plain SQL is what one would write without a ledger: one `INSERT`
of many rows without keys' conflicts, sums or terms, and a `SUM` over all entries. PostgreSQL is measured where Debian's
is installed.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.figures import Figure, publish
from gpuslice.accounting.ledger.database import open_database
from gpuslice.accounting.ledger.ledger import DAY_MS, Ledger
from gpuslice.accounting.ledger.usage import Query, usage
from gpuslice.accounting.metering import HOUR_MS, Entry, Holder, Kind
from tests.ledger.postgres import PROGRAMS, Postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MONTH_START: Final = 1_798_761_600_000
_DAYS: Final = 30
_NAMESPACES: Final = 1000
_BATCH: Final = 5000
_TABLE: Final = (
    "CREATE TABLE plain (start BIGINT, gpu TEXT, claim TEXT, pod TEXT, until BIGINT, parts BIGINT, kind TEXT, "
    "node TEXT, model TEXT, price BIGINT, namespace TEXT, pod_name TEXT)"
)


def entries(count: int) -> Iterator[list[Entry]]:
    """A month of hours, in the order in which a meter writes them."""
    dice = random.Random(16)  # noqa: S311 - the same every time
    hours = _DAYS * 24
    made: list[Entry] = []
    for hour in range(hours):
        start = _MONTH_START + hour * HOUR_MS
        for number in range(count * hour // hours, count * (hour + 1) // hours):
            namespace = f"team-{dice.randrange(_NAMESPACES)}"
            unique = f"{number:012x}-{dice.getrandbits(64):016x}"
            holder = Holder(f"c-{unique}", f"p-{unique}", namespace, f"pod-{number % 10_000}")
            model, price = dice.choice([("A100-40GB", 2_500_000), ("H100-80GB", 6_000_000)])
            gpu = f"GPU-{number % 1000:08x}"
            until = start + dice.randrange(1, HOUR_MS)
            made.append(Entry(start, until, 125_000, Kind.CHARGE, gpu, f"n{number % 125}", model, price, holder))
            if len(made) == _BATCH:
                yield made
                made = []
    if made:
        yield made


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _plain_insert(address: str, rows: Sequence[Entry]) -> None:
    database = open_database(address)
    one = f"({', '.join('?' * 12)})"
    with database.transaction():
        for first in range(0, len(rows), 1000):
            part = rows[first : first + 1000]
            values = [
                value
                for each in part
                for value in (
                    *(each.start, each.gpu, each.holder.claim, each.holder.pod, each.until, each.parts),
                    *(str(each.kind), each.node, each.model, each.price, each.holder.namespace, each.holder.pod_name),
                )
            ]
            database.execute(f"INSERT INTO plain VALUES {', '.join([one] * len(part))}", values)  # noqa: S608
    database.close()


def measure(name: str, address: str, count: int) -> Iterator[Figure]:
    ledger = Ledger.open(address)
    ledger.begin()
    ledger.database.execute(_TABLE)
    appended = inserted = 0.0
    for batch in entries(count):  # by turns, so that both meet the same machine and the same size
        appended += timed(lambda batch=batch: ledger.append(batch, (), (), _MONTH_START))  # type: ignore[misc]
        inserted += timed(lambda batch=batch: _plain_insert(address, batch))  # type: ignore[misc]
    yield Figure(
        name=f"{name}: appends ({count:,} entries)", unit="per s", value=count / appended, baseline=count / inserted,
        at_least=0.2,
    )  # fmt: skip
    month = Query(start=_MONTH_START, until=_MONTH_START + _DAYS * DAY_MS, by=("namespace",))
    plain = (
        "SELECT namespace, price, SUM(parts * (until - start) / 1000000), SUM(parts * (until - start) % 1000000) "
        "FROM plain WHERE start >= ? AND start < ? GROUP BY namespace, price"
    )
    report = min(timed(lambda: usage(ledger, month)) for _ in range(3))
    by_hand = min(timed(lambda: ledger.database.query(plain, (month.start, month.until))) for _ in range(2))
    yield Figure(name=f"{name}: a month by namespace", unit="s", value=report, baseline=by_hand, at_most=0.2)
    # As a budget asks: a window that begins in the middle of an hour (Asia/Kolkata) and ends now.
    start, now = month.start + HOUR_MS // 2, month.until - 1234
    balance = min(timed(lambda: ledger.totals(start, now)) for _ in range(3))
    yield Figure(name=f"{name}: a month's balances", unit="s", value=balance, baseline=by_hand, at_most=0.5)
    ledger.close()


def size(path: Path) -> Figure:
    """What a year of 1,000 namespaces leaves when its entries are gone."""
    ledger = Ledger.open(f"sqlite:{path}")
    before = path.stat().st_size
    ledger.forget(_MONTH_START + _DAYS * DAY_MS, _MONTH_START + _DAYS * DAY_MS)
    ledger.database.execute("DROP TABLE plain")
    ledger.database.execute("VACUUM")
    ledger.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.close()
    mebibytes = 1024**2
    year = path.stat().st_size / _DAYS * 365
    return Figure(name="sqlite: a year of sums by day", unit="MiB", value=year / mebibytes, baseline=before / mebibytes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ledger")
    parser.add_argument("--entries", type=int, default=300_000)
    options, _ = parser.parse_known_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as folder:
        path = Path(folder) / "ledger.sqlite3"
        figures += measure("sqlite", f"sqlite:{path}", options.entries)
        figures.append(size(path))
    if (PROGRAMS / "postgres").exists():
        server = Postgres()
        try:
            figures += measure("postgresql", server.new_database(), options.entries)
        finally:
            server.remove()
    publish("ledger", f"The ledger (SQLite {sqlite3.sqlite_version})", "plain SQL", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
