"""SQLite files: opening, transactions, schema versions.

Connections are in autocommit mode; every change of more than one statement is a `transaction()`. WAL with synchronous=FULL: a committed
transaction survives a power failure, and readers do not block writers.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from ckpt_observe.errors import DamagedFileError
from ckpt_observe.support.fork_gate import ForkGate
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

Migrations: TypeAlias = Sequence[Sequence[str]]
"""Statements that lead from each schema version to the next, starting at an empty file. Only ever appended to."""
_MAX_PARAMETERS: Final = 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999
"""Of one statement."""
_ROWS_AT_ONCE: Final = 100
_SIDE_FILES: Final = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite opens beside a database."""

_fork_gate: Final = ForkGate()


class _Connection(sqlite3.Connection):
    """Raises sqlite3.Error for a damaged file whose error message, which quotes it, is not UTF-8. `sqlite3` raises UnicodeDecodeError."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        try:
            if self.in_transaction:  # `transaction` and `snapshot` hold the gate
                return super().execute(sql, parameters)
            with _fork_gate:
                return super().execute(sql, parameters)
        except UnicodeDecodeError as error:
            raise sqlite3.DatabaseError("the file is damaged") from error

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        try:
            with _fork_gate:
                return super().executemany(sql, parameters)
        except UnicodeDecodeError as error:
            raise sqlite3.DatabaseError("the file is damaged") from error


def connect(path: str | os.PathLike[str], *, busy_seconds: float, create: bool = True, immutable: bool = False) -> sqlite3.Connection:
    """Open a database file. It waits up to `busy_seconds` for another writer. Raise OSError or sqlite3.Error if it cannot be opened.

    The connection may move between threads, but is used by one at a time. `immutable`: it only reads, without locks (see `is_immutable`).
    """
    if create:
        create_private_file(path)
    if os.path.lexists(path) and not os.path.isfile(path):  # not opened, see `create_private_file`
        raise DamagedFileError(errno.EINVAL, "not a regular file", os.fspath(path))
    mode = "ro&immutable=1" if immutable else "rw"  # neither creates a file, which would be readable for everyone
    address = f"{_file_uri(path)}?mode={mode}"
    return sqlite3.connect(address, uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False, factory=_Connection)


def connect_read_only(path: str, *, seconds: float, immutable: bool) -> sqlite3.Connection:
    """Open a database file of others, which may be hostile, without changing anything. Raise OSError or sqlite3.Error if that fails.

    Every statement is interrupted `seconds` after this call. Functions in the schema that have side effects are refused. Read a database
    without a journal (`journal_exists`) as immutable, without a lock: otherwise SQLite would create the log of a database in WAL mode, or
    fail in a read-only directory. The caller must then check that the file has not changed meanwhile.
    """
    path = os.path.realpath(path, strict=True)
    for file in (path, *(f"{path}{suffix}" for suffix in _SIDE_FILES if os.path.exists(f"{path}{suffix}"))):
        if not os.path.isfile(file):  # SQLite would wait for a FIFO for ever
            raise DamagedFileError(errno.EINVAL, f"{os.path.basename(file)} is not a regular file", file)
    address = f"{_file_uri(path)}?mode=ro{'&immutable=1' if immutable else ''}"
    connection = sqlite3.connect(address, uri=True, timeout=min(seconds, 5.0), isolation_level=None, factory=_Connection)
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    try:
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "mmap_size = 0"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _file_uri(path: str | os.PathLike[str]) -> str:
    """Return the URI of a file. With an empty authority: SQLite takes the start of `//data/runs.db` for the name of a host."""
    quoted_path = quote(os.fsencode(path))
    return f"file://{quoted_path}" if quoted_path.startswith("/") else f"file:{quoted_path}"


def is_immutable(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is on a read-only file system and has no journal: SQLite cannot create the log of WAL mode there to read it.

    The file system may be writable elsewhere, if it is a mount of a container. So this may change.
    """
    try:
        is_read_only = hasattr(os, "statvfs") and bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError as error:
        raise_host_exception(error)
        return False
    return is_read_only and not journal_exists(os.fspath(path))


def journal_exists(path: str) -> bool:
    """Return whether a program has the database open in WAL mode, or is writing to it, or died while it did."""
    return rollback_journal_exists(path) or os.path.exists(f"{os.path.realpath(path)}-wal")


def rollback_journal_exists(path: str) -> bool:
    """Return whether a program is writing to the database in another mode than WAL, or died while it did."""
    return os.path.exists(f"{os.path.realpath(path)}-journal")


def create_private_file(path: str | os.PathLike[str]) -> None:
    """Create an empty file that only the owner may access, unless it exists. SQLite gives the same mode to its -wal and -shm files.

    An existing file is not opened: closing the descriptor would drop the locks that this process's own connections hold on it
    (https://www.sqlite.org/howtocorrupt.html, section 2.2).
    """
    with ignore_errors(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OSError that opening an existing file for reading and writing would raise, without opening it (see `create_private_file`).

    SQLite itself opens a file read-only if it cannot write, and gives a directory and a missing permission the same error.
    """
    if os.path.isdir(path):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        code = errno.EROFS if hasattr(os, "statvfs") and os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(code, os.strerror(code))


def enable_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging, which the file remembers. Raise OperationalError if others use it in another mode."""
    connection.execute("PRAGMA journal_mode = WAL")


def sync_commits(connection: sqlite3.Connection) -> None:
    """Make every commit of this connection survive a power failure. In WAL mode SQLite's own default may lose the latest ones."""
    connection.execute("PRAGMA synchronous = FULL")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit everything in the block, or nothing.

    BEGIN IMMEDIATE takes the write lock at once, and waits if another connection holds it.
    A transaction that starts as a reader and then writes fails instead of waiting. A fork waits for the end of the block.
    """
    with _fork_gate:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            rollback(connection)
            raise


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Read several things as of one moment, whatever others commit meanwhile."""
    with _fork_gate:
        connection.execute("BEGIN")
        try:
            yield
        finally:
            rollback(connection)


def rollback(connection: sqlite3.Connection) -> None:
    """End the transaction, if there still is one: SQLite itself rolls back on a full disk."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def release_free_pages(connection: sqlite3.Connection, count: int) -> None:
    """Give up to so many free pages back to the file system, if the file was created with `auto_vacuum = INCREMENTAL`."""
    with _fork_gate:
        connection.executescript(f"PRAGMA incremental_vacuum({int(count)})")  # `execute` would stop after the first page


def insert_rows(connection: sqlite3.Connection, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    """Insert rows with few statements. Call it inside `transaction()`. `statement` inserts one row and ends with `VALUES (?, ...)`.

    Python gives up the GIL for each statement, and another thread may keep it.
    """
    beginning, _, places = statement.rpartition(" VALUES ")
    count = min(_ROWS_AT_ONCE, _MAX_PARAMETERS // len(rows[0])) if rows else 1
    last = len(rows) - len(rows) % count
    for start in range(0, last, count):
        parameters = tuple(chain.from_iterable(rows[start : start + count]))
        connection.execute(f"{beginning} VALUES {','.join([places] * count)}", parameters)
    connection.executemany(statement, rows[last:])


def schema_version(connection: sqlite3.Connection) -> int:
    """Return how many migrations the file has seen; 0 for a new one. It is in the header of the file, so migrations are atomic with it."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def upgrade_schema(connection: sqlite3.Connection, migrations: Migrations) -> int:
    """Run the missing migrations and return the version before. Call it inside `transaction()`: another process may be upgrading, too."""
    version = schema_version(connection)
    for statements in migrations[version:]:
        for statement in statements:
            connection.execute(statement)
    if version < len(migrations):
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
    return version


def primary_code(error: BaseException) -> int:
    """Return SQLite's primary result code, such as `sqlite3.SQLITE_BUSY`, or 0. The higher bytes of an extended code say more."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
