"""What the meter writes and balances ask for.

Entries are only added. Each has a key of its own (claim, pod, GPU, start), so that to write one again changes nothing;
the sums by hour and day grow in the same transaction, by what is new alone. One process writes at a time: it takes
the next term, and a process with an older one is refused.

Sums are read as whole millions and rests apart: a year of 1,000 GPUs is more than 64 bits hold.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from gpuslice.accounting.budgets.balance import Amounts, Credit
from gpuslice.accounting.ledger import migrations
from gpuslice.accounting.ledger.database import LedgerError, open_database
from gpuslice.accounting.metering import HOUR_MS, Account, Gpu, Holding, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpuslice.accounting.ledger.database import Database, Row
    from gpuslice.accounting.metering import Entry

DAY_MS: Final = 24 * HOUR_MS
#: Of one statement. SQLite takes 32,766 parameters.
_ROWS: Final = 1000
_MILLION: Final = 1_000_000
_SUM: Final = f"SUM(amount / {_MILLION}), SUM(amount % {_MILLION})"
_COLUMNS: Final = "start, gpu, claim, pod, until, parts, kind, node, model, price, namespace, pod_name"


class TermOverError(LedgerError):
    """Raised when another process has begun to write: what this one knows is old."""


class _Content(msgspec.Struct, frozen=True):
    gpu: Gpu
    holdings: list[Holding]


class Ledger:
    """An open ledger. One thread at a time uses it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._term: int | None = None

    @classmethod
    def open(cls, address: str) -> Ledger:
        """With its tables up to date."""
        database = open_database(address)
        try:
            migrations.migrate(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @property
    def name(self) -> str:
        return self._database.name

    @property
    def database(self) -> Database:
        return self._database

    def close(self) -> None:
        self._database.close()

    def begin(self) -> tuple[list[Account], int]:
        """Begins to write, in the place of whoever did. What was open, and when that was last looked at; 0: never."""
        with self._database.transaction():
            self._database.execute("UPDATE meter SET term = term + 1 WHERE id = 1")
            ((term, sampled),) = self._database.query("SELECT term, sampled FROM meter WHERE id = 1")
            found = self._database.query("SELECT since, content FROM account")
        self._term = term
        return [_account(since, content) for since, content in found], sampled

    def append(self, entries: Sequence[Entry], changed: Iterable[Account], removed: Iterable[str], sampled: int) -> int:
        """Writes what is closed and what is open, all or nothing; says how many entries are new.

        Raises TermOverError if another process writes now.
        """
        with self._database.transaction():
            self._claim_turn(sampled)
            new = self._insert(entries)
            self._add_up(new)
            self._database.execute_many("DELETE FROM account WHERE gpu = ?", [(name,) for name in removed])
            self._database.execute_many(
                "INSERT INTO account (gpu, since, content) VALUES (?, ?, ?) "
                "ON CONFLICT (gpu) DO UPDATE SET since = excluded.since, content = excluded.content",
                [(each.gpu.name, each.since, _content(each)) for each in changed],
            )
        return len(new)

    def totals(self, start: int, until: int) -> dict[str, Amounts]:
        """What each namespace was charged from `start` to `until`: full days, full hours and parts of hours, each from
        where they are kept.
        """
        found: dict[str, Amounts] = {}
        for namespace, price, amount in self._pieces(start, until):
            by_price = found.setdefault(namespace, {})
            by_price[price] = by_price.get(price, 0) + amount
        return found

    def hours(self, start: int, until: int) -> Iterable[tuple[str, int, int, int]]:
        """Namespace, price, full hour and amount. A day whose hours are not kept any more stands at its noon."""
        since = self.kept_since("hour")
        if start < since:
            days = self._database.query(
                f"SELECT namespace, price, day, {_SUM} FROM usage_day "  # noqa: S608 - our own text
                "WHERE day >= ? AND day < ? AND kind = ? GROUP BY namespace, price, day",
                (_floor(start, DAY_MS), min(until, since), Kind.CHARGE),
            )
            for namespace, price, day, millions, rest in days:
                yield namespace, price, day + DAY_MS // 2, int(millions) * _MILLION + int(rest)
        rows = self._database.query(
            f"SELECT namespace, price, hour, {_SUM} FROM usage_hour "  # noqa: S608 - our own text
            "WHERE hour >= ? AND hour < ? AND kind = ? GROUP BY namespace, price, hour",
            (max(start, since), until, Kind.CHARGE),
        )
        for namespace, price, hour, millions, rest in rows:
            yield namespace, price, hour, int(millions) * _MILLION + int(rest)

    def give_credit(self, credit: Credit) -> bool:
        """Whether it is new: one with the same key is given once."""
        return bool(
            self._database.execute(
                "INSERT INTO credit (id, budget, namespace, amount, given, who, why) VALUES (?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO NOTHING",
                (
                    *(credit.key, credit.budget, credit.namespace, str(credit.amount)),
                    *(credit.at, credit.who, credit.why),
                ),
            )
        )

    def credits(self, budget: str | None = None) -> list[Credit]:
        """All that were given, the first first."""
        condition, parameters = ("WHERE budget = ? ", (budget,)) if budget is not None else ("", ())
        rows = self._database.query(
            "SELECT budget, namespace, amount, given, who, why, id FROM credit "  # noqa: S608 - our own text
            f"{condition}ORDER BY given, id",
            parameters,
        )
        return [
            Credit(name, namespace, int(amount), given, who, why, key)
            for name, namespace, amount, given, who, why, key in rows
        ]

    def kept_since(self, what: str) -> int:
        """From when on entries ('entry') or hours ('hour') are kept."""
        ((since,),) = self._database.query("SELECT since FROM kept WHERE what = ?", (what,))
        return int(since)

    def forget(self, entries_before: int, hours_before: int) -> int:
        """Removes entries and hours that are older; the sums by hour and by day stay. Says how many entries went.

        In full days, and hours never before their entries: what is summed up is summed up from whole pieces.
        """
        entries_before = _floor(entries_before, DAY_MS)
        hours_before = min(_floor(hours_before, DAY_MS), entries_before)
        removed = 0
        for what, table, column, before in (
            ("entry", "entry", "start", entries_before),
            ("hour", "usage_hour", "hour", hours_before),
        ):
            if before <= self.kept_since(what):
                continue
            with self._database.transaction():
                gone = self._database.execute(f"DELETE FROM {table} WHERE {column} < ?", (before,))  # noqa: S608
                self._database.execute("UPDATE kept SET since = ? WHERE what = ?", (before, what))
            removed += gone if what == "entry" else 0
        return removed

    def _claim_turn(self, sampled: int) -> None:
        if self._term is None:
            raise TermOverError("ledger: nothing can be written before the meter has begun")
        changed = self._database.execute(
            "UPDATE meter SET sampled = CASE WHEN sampled > ? THEN sampled ELSE ? END WHERE id = 1 AND term = ?",
            (sampled, sampled, self._term),
        )
        if changed != 1:
            raise TermOverError(f"ledger: another process writes to the {self.name} now")

    def _insert(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those that were not there."""
        by_key = {(each.start, each.gpu, each.holder.claim, each.holder.pod): each for each in entries}
        rows = [(*key, *_rest(each)) for key, each in by_key.items()]
        new: list[Entry] = []
        one = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        for first in range(0, len(rows), _ROWS):
            part = rows[first : first + _ROWS]
            inserted = self._database.query(
                f"INSERT INTO entry ({_COLUMNS}) VALUES {', '.join([one] * len(part))} "  # noqa: S608 - our own text
                "ON CONFLICT DO NOTHING RETURNING start, gpu, claim, pod",
                [value for row in part for value in row],
            )
            new += [by_key[start, gpu, claim, pod] for start, gpu, claim, pod in inserted]
        return new

    def _add_up(self, entries: Iterable[Entry]) -> None:
        hours: Counter[Row] = Counter()
        for each in entries:
            hours[_floor(each.start, HOUR_MS), each.holder.namespace, each.model, each.kind, each.price] += each.amount
        days: Counter[Row] = Counter()
        for (hour, *rest), amount in hours.items():
            days[_floor(hour, DAY_MS), *rest] += amount
        for table, column, sums in (("usage_hour", "hour", hours), ("usage_day", "day", days)):
            self._database.execute_many(
                f"INSERT INTO {table} ({column}, namespace, model, kind, price, amount) "  # noqa: S608 - our own text
                f"VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT ({column}, namespace, model, kind, price) "
                f"DO UPDATE SET amount = {table}.amount + excluded.amount",
                [(*key, amount) for key, amount in sorted(sums.items())],
            )

    def _pieces(self, start: int, until: int) -> Iterator[tuple[str, int, int]]:
        """Namespace, price and amount."""
        if until <= start:
            return
        hours_kept, entries_kept = self.kept_since("hour"), self.kept_since("entry")
        for table, column, first, last in _tables(start, until):
            if table == "usage_hour" and first < hours_kept:
                yield from self._proportion("usage_day", "day", DAY_MS, first, last)
            elif table == "entry" and first < entries_kept:
                yield from self._proportion("usage_hour", "hour", HOUR_MS, first, last)
            elif table == "entry":
                yield from self._clipped(first, last)
            else:
                rows = self._database.query(
                    f"SELECT namespace, price, {_SUM} FROM {table} "  # noqa: S608 - our own text
                    f"WHERE {column} >= ? AND {column} < ? AND kind = ? GROUP BY namespace, price",
                    (first, last, Kind.CHARGE),
                )
                for namespace, price, millions, rest in rows:
                    yield namespace, price, int(millions) * _MILLION + int(rest)

    def _proportion(
        self, table: str, column: str, length: int, start: int, until: int
    ) -> Iterator[tuple[str, int, int]]:
        """Of a piece that is known as a whole alone, as much as belongs to the time if it was used evenly."""
        if table == "usage_hour" and start < self.kept_since("hour"):
            table, column, length = "usage_day", "day", DAY_MS
        rows = self._database.query(
            f"SELECT namespace, price, {_SUM} FROM {table} WHERE {column} = ? AND kind = ? "  # noqa: S608 - our own text
            "GROUP BY namespace, price",
            (_floor(start, length), Kind.CHARGE),
        )
        for namespace, price, millions, rest in rows:
            yield namespace, price, (int(millions) * _MILLION + int(rest)) * (until - start) // length

    def _clipped(self, start: int, until: int) -> Iterator[tuple[str, int, int]]:
        """From the entries of one hour, of each what lies within."""
        rows = self._database.query(
            "SELECT namespace, price, parts, start, until FROM entry "
            "WHERE start >= ? AND start < ? AND until > ? AND kind = ?",
            (_floor(start, HOUR_MS), until, start, Kind.CHARGE),
        )
        for namespace, price, parts, began, ended in rows:
            yield namespace, price, parts * (min(ended, until) - max(began, start))


def _tables(start: int, until: int) -> Iterator[tuple[str, str, int, int]]:
    """Cuts a time into full days, the full hours beside them, and what is left of hours at both ends."""
    hours = -(-start // HOUR_MS) * HOUR_MS, _floor(until, HOUR_MS)
    if hours[0] > hours[1]:
        yield "entry", "start", start, until
        return
    if start < hours[0]:
        yield "entry", "start", start, hours[0]
    if hours[1] < until:
        yield "entry", "start", hours[1], until
    days = -(-start // DAY_MS) * DAY_MS, _floor(until, DAY_MS)
    if days[0] >= days[1]:
        # Not over midnight (UTC) in one piece: each piece is of one day.
        middle = days[1]
        for first, last in ((hours[0], middle), (max(hours[0], middle), hours[1])):
            if first < last:
                yield "usage_hour", "hour", first, last
        return
    yield "usage_day", "day", *days
    if hours[0] < days[0]:
        yield "usage_hour", "hour", hours[0], days[0]
    if days[1] < hours[1]:
        yield "usage_hour", "hour", days[1], hours[1]


def _floor(at: int, length: int) -> int:
    return at // length * length


def _rest(each: Entry) -> Row:
    return (
        *(each.until, each.parts, str(each.kind), each.node, each.model, each.price),
        *(each.holder.namespace, each.holder.pod_name),
    )


def _content(account: Account) -> str:
    return msgspec.json.encode(_Content(account.gpu, list(account.holdings.values()))).decode()


def _account(since: int, content: str) -> Account:
    found = msgspec.json.decode(content, type=_Content)
    return Account(found.gpu, since, {each.claim: each for each in found.holdings})
