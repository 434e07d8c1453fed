"""The tables, as numbered steps: each database remembers which it has taken, and takes the others when it is opened.

A step that was shipped is never changed; a change of the tables is a new step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuslice.accounting.ledger.database import LedgerError

if TYPE_CHECKING:
    from gpuslice.accounting.ledger.database import Database

#: An entry's key begins with the time: new entries stand beside each other, and old ones go together.
_FIRST: Final = (
    """
    CREATE TABLE entry (
        start BIGINT NOT NULL, gpu TEXT NOT NULL, claim TEXT NOT NULL, pod TEXT NOT NULL,
        until BIGINT NOT NULL, parts BIGINT NOT NULL, kind TEXT NOT NULL, node TEXT NOT NULL, model TEXT NOT NULL,
        price BIGINT NOT NULL, namespace TEXT NOT NULL, pod_name TEXT NOT NULL,
        PRIMARY KEY (start, gpu, claim, pod)
    )
    """,
    """
    CREATE TABLE usage_hour (
        hour BIGINT NOT NULL, namespace TEXT NOT NULL, model TEXT NOT NULL, kind TEXT NOT NULL, price BIGINT NOT NULL,
        amount BIGINT NOT NULL,
        PRIMARY KEY (hour, namespace, model, kind, price)
    )
    """,
    """
    CREATE TABLE usage_day (
        day BIGINT NOT NULL, namespace TEXT NOT NULL, model TEXT NOT NULL, kind TEXT NOT NULL, price BIGINT NOT NULL,
        amount BIGINT NOT NULL,
        PRIMARY KEY (day, namespace, model, kind, price)
    )
    """,
    # What was held of each GPU when somebody last looked: the next process goes on from there.
    "CREATE TABLE account (gpu TEXT PRIMARY KEY, since BIGINT NOT NULL, content TEXT NOT NULL)",
    # One row: whose turn it is to write, and when somebody last looked.
    "CREATE TABLE meter (id BIGINT PRIMARY KEY, term BIGINT NOT NULL, sampled BIGINT NOT NULL)",
    "INSERT INTO meter (id, term, sampled) VALUES (1, 0, 0)",
    # Before these moments, entries and hours were removed: what is older is known by the hour, or by the day.
    "CREATE TABLE kept (what TEXT PRIMARY KEY, since BIGINT NOT NULL)",
    "INSERT INTO kept (what, since) VALUES ('entry', 0), ('hour', 0)",
    """
    CREATE TABLE credit (
        id TEXT PRIMARY KEY, budget TEXT NOT NULL, namespace TEXT NOT NULL, amount TEXT NOT NULL, given BIGINT NOT NULL,
        who TEXT NOT NULL, why TEXT NOT NULL
    )
    """,
)

MIGRATIONS: Final = (_FIRST,)


def migrate(database: Database) -> int:
    """Brings the tables up to date, and says by how many steps."""
    with database.transaction():
        database.wait_for_turn()
        database.execute("CREATE TABLE IF NOT EXISTS migration (number BIGINT PRIMARY KEY)")
        ((taken,),) = database.query("SELECT COALESCE(MAX(number), 0) FROM migration")
        if taken > len(MIGRATIONS):
            raise LedgerError(
                f"ledger: the {database.name} was written by a newer gpuslice (its tables have version {taken}, and "
                f"this one knows {len(MIGRATIONS)}). Install that version again, or put an older backup in its place"
            )
        for number, statements in enumerate(MIGRATIONS[taken:], taken + 1):
            for statement in statements:
                database.execute(statement)
            database.execute("INSERT INTO migration (number) VALUES (?)", (number,))
    return len(MIGRATIONS) - int(taken)
