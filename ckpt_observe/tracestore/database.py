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

FILENAME: Final = "operations.db"
"""Name of the store within the state directory. `former_store` has the file of earlier versions."""

APPLICATION_ID: Final = 0x636B7074
"""`ckpt` in ASCII."""

BUSY_SECONDS: Final = 5.0
"""How long to wait for another writer, which holds the lock for one batch."""

INDEXED: Final = ("task_name", "task_id", "session_id", "error_class")
"""Columns by which operations are searched. Each has an index ordered by time, which has an entry only if there is a value."""

UNINDEXED: Final = {"outcome": "ok", "operation": "save"}
"""Columns whose index leaves out the most frequent value: the index by time finds that one as fast, and most operations need no entry."""


# Operations refer to their trace by number. Numbers grow with time, so an insert changes few pages of the indexes; trace ids are random.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        "CREATE TABLE resource (id INTEGER PRIMARY KEY, attributes TEXT NOT NULL UNIQUE)",
        """CREATE TABLE trace (
            id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, start_unix_nano INTEGER NOT NULL,
            end_unix_nano INTEGER NOT NULL, spans INTEGER NOT NULL, operations INTEGER NOT NULL, errors INTEGER NOT NULL,
            interrupted INTEGER NOT NULL
        )""",
        "CREATE INDEX trace_by_end ON trace (end_unix_nano)",
        """CREATE TABLE operation (
            id INTEGER PRIMARY KEY, trace INTEGER NOT NULL REFERENCES trace, span_id TEXT NOT NULL, parent_span_id TEXT NOT NULL,
            name TEXT NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL, status TEXT NOT NULL,
            spans INTEGER NOT NULL, resource_id INTEGER NOT NULL REFERENCES resource,
            outcome TEXT, operation TEXT, task_name TEXT, task_id TEXT, session_id TEXT, error_class TEXT, error_code TEXT, system TEXT,
            checkpoint_id TEXT, stored_bytes INTEGER,
            attributes TEXT NOT NULL, phases TEXT, events TEXT, links TEXT,
            UNIQUE (trace, span_id)
        )""",
        "CREATE INDEX operation_by_end ON operation (end_unix_nano, system, checkpoint_id, stored_bytes, error_code, resource_id)",
        "CREATE INDEX operation_by_resource ON operation (resource_id)",
        *(f"CREATE INDEX operation_by_{column} ON operation ({column}, end_unix_nano) WHERE {column} IS NOT NULL" for column in INDEXED),
        *(
            f"CREATE INDEX operation_by_{column} ON operation ({column}, end_unix_nano) WHERE {column} <> '{value}'"
            for column, value in UNINDEXED.items()
        ),
        """CREATE TRIGGER operation_went AFTER DELETE ON operation BEGIN
            UPDATE trace SET
                spans = spans - OLD.spans,
                operations = operations - (OLD.operation IS NOT NULL),
                errors = errors - (OLD.operation IS NOT NULL AND OLD.outcome IS 'error'),
                interrupted = interrupted - (OLD.operation IS NOT NULL AND OLD.outcome IS 'interrupted')
            WHERE id = OLD.trace;
        END""",
        """CREATE TABLE removed (
            reason TEXT PRIMARY KEY, traces INTEGER NOT NULL, operations INTEGER NOT NULL, last_unix_nano INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
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


def connect(path: Path, *, create: bool, immutable: bool = False) -> sqlite3.Connection:
    """Open the store and upgrade its tables. TraceStoreError if that fails, or if the file does not exist and `create` is False.

    A file of another program or of a newer version is not changed and raises TraceStoreError, too. `immutable`: see `sqlite.connect`.
    """
    with translate_errors(path):
        if create:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite.connect(path, busy_seconds=BUSY_SECONDS, create=create, immutable=immutable)
        try:
            prepare(connection, path, MIGRATIONS)
        except BaseException:
            connection.close()
            raise
        return connection


def prepare(connection: sqlite3.Connection, path: Path, migrations: sqlite.Migrations) -> None:
    """Check that the file is a store of ours, create or upgrade its tables, and make commits durable."""
    version = _read_version(connection, path, len(migrations))
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table; else it has no effect
    if version < len(migrations):
        with sqlite.transaction(connection):
            sqlite.upgrade_schema(connection, migrations)
    # Fails while another process has a new file open. The store works without WAL, and the next process to open it tries again.
    with suppress(sqlite3.OperationalError):
        sqlite.enable_wal(connection)
    # The cursor of the exporter advances as soon as `write` returns, so the batch must survive a power failure.
    sqlite.sync_commits(connection)
    connection.execute("PRAGMA recursive_triggers = ON")  # a repeated operation replaces its row, which counts as a deletion


def _read_version(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    with sqlite.snapshot(connection):  # another process may be creating the tables right now
        application, tables = (
            connection.execute(query).fetchone()[0] for query in ("PRAGMA application_id", "SELECT count(*) FROM sqlite_master")
        )
        version = sqlite.schema_version(connection)
    if application != APPLICATION_ID and (application or version or tables):
        raise TraceStoreError(f"{path} is a database of another program. {MOVE_IT}")
    if version > newest:
        raise TraceStoreError(
            f"{path} was written by a newer ckpt_observe (schema version {version}, this one supports {newest}). "
            "Upgrade ckpt_observe, move the file away, or set CKPT_OBSERVE_DIR to another directory. The file was not changed."
        )
    return version
