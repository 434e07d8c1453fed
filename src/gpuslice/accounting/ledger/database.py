"""SQLite and PostgreSQL behind one small interface: statements with `?`, transactions, and failures said plainly.

Only what both understand is used: `ON CONFLICT`, `RETURNING`, whole numbers of 64 bits, text.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit, urlunsplit

from gpuslice.model.errors import GpusliceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

Row = tuple[Any, ...]

_SQLITE: Final = "sqlite:"
_POSTGRES: Final = ("postgresql:", "postgres:")
#: How long a statement waits for another process that writes, and a connection for its answer.
_PATIENCE_SECONDS: Final = 10
#: A database that does not answer is not waited for until the end of TCP's own patience.
_STATEMENT_TIMEOUT_MS: Final = 60_000
_FULL: Final = {sqlite3.SQLITE_FULL}
_BROKEN: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
#: The name of PostgreSQL's lock for those who change tables; any number will do that is ours alone.
_TURN: Final = 0x67707573
_POSTGRES_DISK_FULL: Final = "53100"


class LedgerError(GpusliceError):
    """Raised when the ledger cannot be read or written. Says which, why, and what to do."""


class LedgerUnavailableError(LedgerError):
    """Raised when it may work later: the disk is full, or the database does not answer."""


class Database(Protocol):
    """An open database. One thread at a time uses it."""

    name: str

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """All of what is done inside, or nothing. Writers take turns."""
        ...

    def wait_for_turn(self) -> None:
        """Inside a transaction that changes tables: no other process does meanwhile."""
        ...

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> int:
        """How many rows it changed."""
        ...

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None: ...

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[Row]: ...

    def close(self) -> None: ...


def open_database(address: str) -> Database:
    """By its address: `sqlite:/path/to/file` or `postgresql://user@host/name`."""
    scheme, _, rest = address.partition(":")
    if f"{scheme}:" == _SQLITE:
        path = Path("/" + rest.lstrip("/") if rest.startswith("/") else rest)
        if not rest or path.is_dir():
            raise LedgerError(f"ledger {address!r}: name a file, as sqlite:/var/lib/gpuslice/ledger/ledger.sqlite3")
        return _Sqlite(path)
    if f"{scheme}:" in _POSTGRES:
        return _Postgres(address)
    raise LedgerError(
        f"ledger {address!r} is neither SQLite nor PostgreSQL: write sqlite:/path/to/file or postgresql://user@host/name"
    )


class _Sqlite:
    """A file. Others may read it meanwhile (write-ahead log), and a power cut loses nothing that was acknowledged."""

    def __init__(self, path: Path) -> None:
        self.name = f"SQLite file {path}"
        with self._failures():
            self._connection = sqlite3.connect(
                path, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.execute("PRAGMA cache_size = -65536")
                self._connection.execute("PRAGMA temp_store = MEMORY")
            except sqlite3.Error:
                self._connection.close()
                raise

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._failures():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def wait_for_turn(self) -> None:
        """`BEGIN IMMEDIATE` has waited already."""

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> int:
        with self._failures():
            return self._connection.execute(statement, parameters).rowcount

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        with self._failures():
            self._connection.executemany(statement, rows)

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[Row]:
        with self._failures():
            return self._connection.execute(statement, parameters).fetchall()

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _FULL:
                raise LedgerUnavailableError(
                    f"ledger: the disk of the {self.name} is full. What was not written is kept in memory; make room, "
                    "and it is written"
                ) from error
            if code in _BROKEN:
                raise LedgerError(f"ledger: the {self.name} is damaged ({error}). Put a backup in its place") from error
            raise LedgerUnavailableError(f"ledger: the {self.name} cannot be used: {error}") from error


class _Postgres:
    """A server, reached anew after its connection is lost."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.name = f"PostgreSQL database {_without_password(address)}"
        self._open: psycopg.Connection[Row] | None = None
        self._within = False
        with self._failures():
            self._connection()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self._failures(), self._connection().transaction():
            self._within = True
            try:
                yield
            finally:
                self._within = False

    def wait_for_turn(self) -> None:
        self.query("SELECT pg_advisory_xact_lock(?)", (_TURN,))

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> int:
        with self._failures():
            return self._connection().execute(_numbered(statement), parameters).rowcount

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        with self._failures(), self._connection().cursor() as cursor:
            cursor.executemany(_numbered(statement), rows)

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[Row]:
        with self._failures():
            return self._connection().execute(_numbered(statement), parameters).fetchall()

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def _connection(self) -> psycopg.Connection[Row]:
        import psycopg

        if self._open is not None and self._open.closed and not self._within:
            self._open = None
        if self._open is None:
            self._open = psycopg.connect(
                self._address,
                autocommit=True,
                connect_timeout=_PATIENCE_SECONDS,
                application_name="gpuslice",
                client_encoding="UTF8",
                options=f"-c statement_timeout={_STATEMENT_TIMEOUT_MS} -c lock_timeout={_PATIENCE_SECONDS * 1000}",
                keepalives_idle=_PATIENCE_SECONDS,
                keepalives_interval=_PATIENCE_SECONDS,
                keepalives_count=2,
                tcp_user_timeout=3000 * _PATIENCE_SECONDS,
            )
        return self._open

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as error:
            text = " ".join(str(error).split())
            if error.sqlstate == _POSTGRES_DISK_FULL:
                raise LedgerUnavailableError(
                    f"ledger: the disk of the {self.name} is full. What was not written is kept in memory; make room, "
                    "and it is written"
                ) from error
            if isinstance(error, psycopg.OperationalError):
                raise LedgerUnavailableError(f"ledger: the {self.name} does not answer: {text}") from error
            raise LedgerError(f"ledger: the {self.name} refuses: {text}") from error


def _numbered(statement: str) -> str:
    """Parameters as psycopg writes them. No statement of ours has a question mark or a percent sign in a text."""
    return statement.replace("%", "%%").replace("?", "%s")


def _without_password(address: str) -> str:
    """For logs."""
    parts = urlsplit(address)
    place = parts.netloc.rpartition("@")
    user = place[0].partition(":")[0]
    return urlunsplit((parts.scheme, f"{user}@{place[2]}" if user else place[2], parts.path, "", ""))
