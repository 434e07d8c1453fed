"""What the ledger tells people: GPU time and money, grouped as they ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuslice.accounting.charges import GPU_HOUR
from gpuslice.accounting.ledger.database import LedgerError
from gpuslice.accounting.ledger.ledger import DAY_MS
from gpuslice.accounting.metering import HOUR_MS, Kind
from gpuslice.system import timestamps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuslice.accounting.ledger.database import Row
    from gpuslice.accounting.ledger.ledger import Ledger

#: What one may group by. Those of the second line need single entries, which are kept for a while only.
SUMMED: Final = ("namespace", "model", "day")
SINGLE: Final = ("pod", "node", "gpu", "hour")
DIMENSIONS: Final = SUMMED + SINGLE
_EXPRESSIONS: Final = {"pod": "pod_name", "hour": f"(start / {HOUR_MS} * {HOUR_MS})"}
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Full hours from `start` to `until`; full days where those are all that is kept."""

    start: int
    until: int
    by: tuple[str, ...] = ("namespace",)
    #: Of these namespaces alone; None: of all, with what was idle.
    namespaces: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What one group was charged, or what of it was idle."""

    group: dict[str, str] = field(hash=False)
    kind: Kind
    #: Parts times milliseconds, and millionths of the currency.
    amount: int
    money: int

    @property
    def gpu_hours(self) -> float:
        return self.amount / GPU_HOUR


def usage(ledger: Ledger, query: Query) -> list[Usage]:
    """The largest first; over days and hours in their order."""
    for name in query.by:
        if name not in DIMENSIONS:
            raise LedgerError(f"usage by {name!r}: usage is known by {', '.join(DIMENSIONS)}")
    money: dict[tuple[tuple[str, ...], Kind], list[int]] = {}
    for *group, kind, price, millions, rest in _rows(ledger, query):
        sums = money.setdefault((tuple(_shown(query.by, tuple(group))), Kind(kind)), [0, 0])
        amount = int(millions) * _MILLION + int(rest)
        sums[0] += amount
        sums[1] += amount * price
    found = [
        Usage(dict(zip(query.by, group, strict=True)), kind, amount, priced // GPU_HOUR)
        for (group, kind), (amount, priced) in money.items()
    ]
    times = [name for name in query.by if name in ("day", "hour")]
    return sorted(found, key=lambda each: ([each.group[name] for name in times], -each.amount, [*each.group.values()]))


def _rows(ledger: Ledger, query: Query) -> list[Row]:
    single = [name for name in query.by if name in SINGLE]
    if single and query.start < (kept := ledger.kept_since("entry")):
        raise LedgerError(
            f"usage by {', '.join(single)} is kept since {timestamps.time(kept / 1000)} only; ask for a later start, "
            f"or by {', '.join(SUMMED)}"
        )
    pieces = [("entry", "start", query.start, query.until)] if single else list(_pieces(ledger, query))
    condition, parameters = _of(query.namespaces)
    found: list[Row] = []
    for table, time, start, until in pieces:
        day = f"({time} / {DAY_MS} * {DAY_MS})"
        groups = ", ".join(
            [*(day if name == "day" else _EXPRESSIONS.get(name, name) for name in query.by), "kind", "price"]
        )
        amount = "(parts * (until - start))" if single else "amount"
        statement = (
            f"SELECT {groups}, SUM({amount} / {_MILLION}), SUM({amount} % {_MILLION}) FROM {table} "  # noqa: S608 - ours
            f"WHERE {time} >= ? AND {time} < ?{condition} GROUP BY {groups}"
        )
        found += ledger.database.query(statement, (start, until, *parameters))
    return found


def _pieces(ledger: Ledger, query: Query) -> Iterator[tuple[str, str, int, int]]:
    """The full days, and the full hours beside them; where only days are kept, the days that the time touches."""
    start, until = query.start // HOUR_MS * HOUR_MS, -(-query.until // HOUR_MS) * HOUR_MS
    first, last = -(-start // DAY_MS) * DAY_MS, until // DAY_MS * DAY_MS
    if start < ledger.kept_since("hour"):
        first = start // DAY_MS * DAY_MS
        last = max(last, first + DAY_MS)
        start = first
    if first >= last:
        yield "usage_hour", "hour", start, until
        return
    yield "usage_day", "day", first, last
    for begin, end in ((start, first), (last, until)):
        if begin < end:
            yield "usage_hour", "hour", begin, end


def _of(namespaces: frozenset[str] | None) -> tuple[str, Sequence[str]]:
    if namespaces is None:
        return "", ()
    wanted = sorted(namespaces)
    return (f" AND namespace IN ({', '.join('?' * len(wanted))})", wanted) if wanted else (" AND 1 = 0", ())


def _shown(by: Sequence[str], group: Row) -> list[str]:
    return [
        (timestamps.time(int(value) / 1000)[: 10 if name == "day" else None]) if name in ("day", "hour") else str(value)
        for name, value in zip(by, group, strict=True)
    ]
