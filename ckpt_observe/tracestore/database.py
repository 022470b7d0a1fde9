"""The file of the trace store: its tables, the migrations that create them, how it is opened, and what its errors mean.

The header of the file identifies it: `application_id` marks it as ours, `user_version` is the number of migrations applied to it. Both
change in the same transaction as the tables. New migrations are appended; existing ones never change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ckpt_observe.errors import TraceStoreError
from ckpt_observe.support import sqlite

FILENAME: Final = "traces.db"
"""Name of the store within the state directory."""

APPLICATION_ID: Final = 0x636B7074
"""`ckpt` in ASCII."""

BUSY_SECONDS: Final = 5.0
"""How long to wait for another writer, which holds the lock for one batch."""

# Columns by which traces are searched, besides the name. Each has an index ordered by time, so that no search reads the whole store.
_FACETS_1: Final = ("outcome", "operation", "task_name", "task_id", "session_id", "error_class")

# The summary of a trace is updated whenever spans are added, changed or removed, so that listing traces never counts spans.
# A trace is named after its earliest span. That is usually the task, which ends last and so arrives last.
_ADD_TO_SUMMARY: Final = """
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
COUNT_IN: Final = _ADD_TO_SUMMARY.format(values="?, ?, ?, ?, ?, ?, ?, ?", is_root="?")
"""Adds the new spans of one trace to its summary. As a trigger on each insert it took half of the time of a write.

The parameters are the columns of `trace`, and whether the earliest new span is a root."""
_COUNT_IN_BY_TRIGGER: Final = _ADD_TO_SUMMARY.format(
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
        f"CREATE TRIGGER span_came AFTER INSERT ON span BEGIN {_COUNT_IN_BY_TRIGGER} END",
        f"CREATE TRIGGER span_went AFTER DELETE ON span BEGIN {_COUNT_OUT} END",
        f"CREATE TRIGGER span_changed AFTER UPDATE ON span BEGIN {_COUNT_OUT} {_COUNT_IN_BY_TRIGGER} END",
    ),
    ("DROP TRIGGER span_came", "DROP INDEX span_by_parent"),
)


class _Explanation(NamedTuple):
    problem: str
    advice: str


MOVE_IT: Final = "Move it away, or set CKPT_OBSERVE_DIR to another directory. The file was not changed."
_IS_RETRIED: Final = "Delivery retries its writes; retry a command yourself."
_EXPLANATIONS: Final = {
    sqlite3.SQLITE_BUSY: _Explanation("is locked by another process", _IS_RETRIED),
    sqlite3.SQLITE_LOCKED: _Explanation("is locked by another thread", _IS_RETRIED),
    sqlite3.SQLITE_PROTOCOL: _Explanation("is locked by another process", _IS_RETRIED),
    sqlite3.SQLITE_FULL: _Explanation("cannot grow", "Free some space on its disk."),
    sqlite3.SQLITE_IOERR: _Explanation("could not be read or written", "Check its disk."),
    sqlite3.SQLITE_CANTOPEN: _Explanation("cannot be opened", "Check its directory and permissions."),
    sqlite3.SQLITE_READONLY: _Explanation("cannot be written", "Check its permissions."),
    sqlite3.SQLITE_PERM: _Explanation("cannot be accessed", "Check its permissions."),
    sqlite3.SQLITE_NOMEM: _Explanation("needs more memory than is available", _IS_RETRIED),
    sqlite3.SQLITE_NOTADB: _Explanation("is not a database", MOVE_IT),
    sqlite3.SQLITE_CORRUPT: _Explanation(
        "is damaged", "Move it away, and a new one is created; `sqlite3 FILE .recover` may recover its contents."
    ),
}
"""By primary result code. All of these can be temporary or be fixed by a person; until then the journal keeps the spans."""
_UNKNOWN: Final = _Explanation("cannot be used", "Please report this.")


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the file system, and of values that cannot be stored or decoded, into TraceStoreError with advice."""
    try:
        yield
    except sqlite3.Error as error:
        explanation = _EXPLANATIONS.get(sqlite.primary_code(error), _UNKNOWN)
        raise TraceStoreError(f"The trace store {path} {explanation.problem} ({error}). {explanation.advice}") from error
    except OSError as error:
        raise TraceStoreError(f"The trace store {path} cannot be opened: {error}") from error
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise TraceStoreError(f"A span cannot be stored in {path}, or is damaged there: {error}", retryable=False) from error


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the store and upgrade its tables. TraceStoreError if that fails, or if the file does not exist and `create` is False.

    A file of another program or of a newer version is not changed and raises TraceStoreError, too.
    """
    with translate_errors(path):
        if create:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite.connect(path, busy_seconds=BUSY_SECONDS, create=create)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    version = _read_version(connection, path)
    if version < len(MIGRATIONS):
        with sqlite.transaction(connection):
            sqlite.upgrade_schema(connection, MIGRATIONS)
    # Fails while another process has a new file open. The store works without WAL, and the next process to open it tries again.
    with suppress(sqlite3.OperationalError):
        sqlite.enable_wal(connection)
    # The cursor of the exporter advances as soon as `write` returns, so the batch must survive a power failure.
    sqlite.sync_commits(connection)


def _read_version(connection: sqlite3.Connection, path: Path) -> int:
    with sqlite.snapshot(connection):  # another process may be creating the tables right now
        application, tables = (
            connection.execute(query).fetchone()[0] for query in ("PRAGMA application_id", "SELECT count(*) FROM sqlite_master")
        )
        version = sqlite.schema_version(connection)
    if application != APPLICATION_ID and (application or version or tables):
        raise TraceStoreError(f"{path} is a database of another program. {MOVE_IT}")
    if version > len(MIGRATIONS):
        raise TraceStoreError(
            f"{path} was written by a newer ckpt_observe (schema version {version}, this one supports {len(MIGRATIONS)}). "
            "Upgrade ckpt_observe, move the file away, or set CKPT_OBSERVE_DIR to another directory. The file was not changed."
        )
    return version
