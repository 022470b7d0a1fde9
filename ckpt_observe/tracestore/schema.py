"""The tables of the trace store, how they came to be, and the one way to open them.

The file says of itself what it is: `application_id` marks it as ours, `user_version` counts the migrations it has seen. Both
are in the database's header, so a migration and the record that it ran are one transaction. Migrations are only ever appended.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ckpt_observe.errors import TraceStoreError
from ckpt_observe.tracestore.failure import ELSEWHERE, explained

FILENAME: Final = "traces.db"
"""Name of the store within the state directory."""

APPLICATION_ID: Final = 0x636B7074
"""`ckpt` in ASCII."""

BUSY_SECONDS: Final = 5.0
"""How long to wait for another writer: each holds the lock for one batch."""

# Traces are found by these and by name; each has an index in order of time, so that no list reads the whole store.
_FACETS_1: Final = ("outcome", "operation", "task_name", "task_id", "session_id", "error_class")

# A trace's line in the list is kept with the spans that come, change or go, so that a list never counts spans.
# A trace is named by its earliest span; that is the task, which ends and so arrives last.
_COUNTED_IN: Final = """
INSERT INTO trace VALUES ({values})
ON CONFLICT (trace_id) DO UPDATE SET
    name = CASE WHEN excluded.start_unix_nano < start_unix_nano
        OR excluded.start_unix_nano = start_unix_nano AND {is_root} THEN excluded.name ELSE name END,
    start_unix_nano = min(start_unix_nano, excluded.start_unix_nano),
    end_unix_nano = max(end_unix_nano, excluded.end_unix_nano),
    spans = spans + excluded.spans,
    operations = operations + excluded.operations,
    errors = errors + excluded.errors,
    interrupted = interrupted + excluded.interrupted;
"""
COUNT_IN: Final = _COUNTED_IN.format(values="?, ?, ?, ?, ?, ?, ?, ?", is_root="?")
"""For the spans of a batch at once: in a trigger it is half of what writing a span takes. The last value: is the earliest a root."""
_COUNT_IN: Final = _COUNTED_IN.format(
    values="NEW.trace_id, NEW.name, NEW.start_unix_nano, NEW.end_unix_nano, 1, NEW.operation IS NOT NULL, "
    "NEW.operation IS NOT NULL AND NEW.outcome IS 'error', NEW.operation IS NOT NULL AND NEW.outcome IS 'interrupted'",
    is_root="NEW.parent_span_id = ''",
)
_COUNT_OUT: Final = """
UPDATE trace SET
    spans = spans - 1,
    operations = operations - (OLD.operation IS NOT NULL),
    errors = errors - (OLD.operation IS NOT NULL AND OLD.outcome IS 'error'),
    interrupted = interrupted - (OLD.operation IS NOT NULL AND OLD.outcome IS 'interrupted')
WHERE trace_id = OLD.trace_id;
"""

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        "CREATE TABLE resource (id INTEGER PRIMARY KEY, attributes TEXT NOT NULL UNIQUE)",
        """CREATE TABLE trace (
            trace_id TEXT PRIMARY KEY, name TEXT NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL,
            spans INTEGER NOT NULL, operations INTEGER NOT NULL, errors INTEGER NOT NULL, interrupted INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX trace_by_end ON trace (end_unix_nano)",
        """CREATE TABLE span (
            id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_span_id TEXT NOT NULL, name TEXT NOT NULL,
            start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL, status TEXT NOT NULL,
            outcome TEXT, operation TEXT, task_name TEXT, task_id TEXT, session_id TEXT, error_class TEXT,
            attributes TEXT NOT NULL, events TEXT NOT NULL, links TEXT NOT NULL, resource_id INTEGER NOT NULL REFERENCES resource,
            UNIQUE (trace_id, span_id)
        )""",
        "CREATE INDEX span_by_parent ON span (trace_id, parent_span_id, start_unix_nano)",
        "CREATE INDEX span_by_resource ON span (resource_id)",
        "CREATE INDEX span_by_name ON span (name, end_unix_nano)",
        *(f"CREATE INDEX span_by_{column} ON span ({column}, end_unix_nano) WHERE {column} IS NOT NULL" for column in _FACETS_1),
        f"CREATE TRIGGER span_came AFTER INSERT ON span BEGIN {_COUNT_IN} END",
        f"CREATE TRIGGER span_went AFTER DELETE ON span BEGIN {_COUNT_OUT} END",
        f"CREATE TRIGGER span_changed AFTER UPDATE ON span BEGIN {_COUNT_OUT} {_COUNT_IN} END",
    ),
    ("DROP TRIGGER span_came", "DROP INDEX span_by_parent"),
)


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """An open store with today's tables. A file that is not ours, or newer than we are, is a TraceStoreError and stays as it is."""
    with explained(path):
        if create:
            _create(path)
        # Used by one thread at a time, but not always by the one that opened it.
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw", uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _create(path: Path) -> None:
    """An empty private file, if there is none; SQLite gives its -wal and -shm the same mode."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Only ever a new file: closing a descriptor of an open store would drop the locks of this process on it (fcntl's rule).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    version = _version(connection, path)
    for number in range(version, len(MIGRATIONS)):
        _migrate(connection, number)
    if version == 0:
        # Fails while another process has the new file open; the store works without, and that process asks for it too.
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
    # An exporter's cursor moves on as soon as `write` returns, so what was written must outlive a power cut.
    connection.execute("PRAGMA synchronous = FULL")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    connection.execute("BEGIN")  # one view for three reads: another process may be making the tables right now
    application, version, tables = (
        connection.execute(query).fetchone()[0]
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    connection.execute("ROLLBACK")
    if application != APPLICATION_ID and (application or version or tables):
        raise TraceStoreError(f"{path} is a database of another program: {ELSEWHERE}")
    if version > len(MIGRATIONS):
        raise TraceStoreError(
            f"{path} was written by a newer ckpt_observe (its schema is {version}, this one knows {len(MIGRATIONS)}): "
            f"upgrade ckpt_observe, or {ELSEWHERE}"
        )
    return int(version)


def _migrate(connection: sqlite3.Connection, number: int) -> None:
    with transaction(connection):
        if connection.execute("PRAGMA user_version").fetchone()[0] != number:
            return  # another process did it while we waited for the lock
        for statement in MIGRATIONS[number]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number + 1}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. IMMEDIATE, since a read lock that becomes a write lock fails at once instead of waiting its turn."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back on a full disk
            connection.execute("ROLLBACK")
        raise
