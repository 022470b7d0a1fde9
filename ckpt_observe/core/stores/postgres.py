"""Checkpoints in PostgreSQL: `postgresql://user@host/database`. Extra `postgres`.

When `put` returns, the transaction is committed with synchronous_commit on, whatever the server's default: it is on the
server's disk. Safe between threads, processes and hosts. Lists and finds by index. A lost connection is made anew at the
next call; trying again is left to `RetryingStore`. A checkpoint may have up to 1 GB, PostgreSQL's limit for a value.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores import forks, sql
from ckpt_observe.core.stores.base import Promise, Store
from ckpt_observe.errors import (
    AccessError,
    CapacityError,
    CheckpointError,
    CheckpointNotFoundError,
    ConflictError,
    DeadlineError,
    MissingExtraError,
    StorageError,
    UnavailableError,
)

try:
    import psycopg
except ImportError as error:
    raise MissingExtraError("the PostgreSQL store", "postgres") from error

_SCHEMA = """
CREATE TABLE IF NOT EXISTS ckpt_checkpoints (
    task text NOT NULL, id text COLLATE "C" NOT NULL, created bigint NOT NULL, step bigint, status text NOT NULL, error_class text,
    stored_size bigint NOT NULL, header bytea NOT NULL, payload bytea NOT NULL, PRIMARY KEY (task, id));
CREATE TABLE IF NOT EXISTS ckpt_quarantine (task text NOT NULL, id text NOT NULL, header bytea NOT NULL, payload bytea NOT NULL);
CREATE INDEX IF NOT EXISTS ckpt_checkpoints_by_task ON ckpt_checkpoints (task, created DESC, id DESC);
CREATE INDEX IF NOT EXISTS ckpt_checkpoints_by_time ON ckpt_checkpoints (created DESC, id DESC);
"""
_INSERT = f"INSERT INTO ckpt_checkpoints ({sql.COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"  # noqa: S608
_ONE = "FROM ckpt_checkpoints WHERE task = %s AND id = %s"
_SETUP_LOCK = 0x636B7074
"""Two processes that set up at once: CREATE IF NOT EXISTS alone can still collide."""
_CONNECT_SECONDS = 10

_TABLE: tuple[tuple[str, type[CheckpointError], str, bool], ...] = (
    ("23505", ConflictError, "conflict.exists", False),
    ("40", ConflictError, "conflict.locked", True),
    ("55P03", ConflictError, "conflict.locked", True),
    ("53100", CapacityError, "storage.no_space", False),
    ("53200", CapacityError, "memory.exhausted", False),
    ("54", CapacityError, "storage.too_large", False),
    ("42501", AccessError, "storage.permission", False),
    ("28", AccessError, "storage.permission", False),
    ("3D", AccessError, "storage.permission", False),
    ("25006", StorageError, "storage.read_only", False),
    ("57014", DeadlineError, "timeout.deadline", True),
    ("57", UnavailableError, "unavailable.connection", True),
    ("53", UnavailableError, "unavailable.connection", True),
    ("08", UnavailableError, "unavailable.connection", True),
)
"""SQLSTATE or its first letters; the first that fits."""


class PostgresStore(Store):
    """A table of checkpoints on a server."""

    kind = "postgresql"
    promise = Promise(durable="machine", shared="hosts")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        super().__init__(f"postgresql://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}")
        self._url = url
        self._lock = threading.RLock()
        self._connection: Any = None
        self._closed = False
        forks.watch(self)

    def begin_anew(self) -> None:
        """In a forked child: a connection of its own."""
        self._lock = threading.RLock()
        forks.abandoned.append(self._connection)
        self._connection = None

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        self.put_many([(info, blob)])

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        rows = [sql.row(info, blob) for info, blob in batch]
        with self._transaction("saving") as connection, connection.cursor() as cursor:
            cursor.executemany(_INSERT, rows)

    def get(self, task: str, id: str) -> Buffer:
        header, payload = self._one("header, payload", task, id)
        return bytes(header) + bytes(payload)

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        whole = "substring(header || payload from %s for %s)"
        return bytes(self._one(whole, task, id, (start + 1, size))[0])

    def info(self, task: str, id: str) -> CheckpointInfo:
        return container.read_header(bytes(self._one("header", task, id)[0]))

    def size(self, task: str, id: str) -> int:
        return int(self._one("length(header) + length(payload)", task, id)[0])

    def delete(self, task: str, id: str) -> None:
        with self._transaction("deleting") as connection:
            self._delete(connection, task, id)

    def quarantine(self, task: str, id: str) -> None:
        with self._transaction("moving") as connection:
            connection.execute(f"INSERT INTO ckpt_quarantine SELECT task, id, header, payload {_ONE}", (task, id))
            self._delete(connection, task, id)

    def list(self, task: str) -> CheckpointInfos:
        return self.find(Query(task=task))

    def find(self, query: Query) -> CheckpointInfos:
        where, values = sql.conditions(query, lambda: "%s")
        limit = query.limit if sql.columns_suffice(query) else None
        statement = f"SELECT header FROM ckpt_checkpoints WHERE {where} ORDER BY created DESC, id DESC LIMIT %s"  # noqa: S608
        headers: list[Buffer] = [row[0] for row in self._rows(statement, (*values, limit))]
        return [info for info in sql.infos(headers) if query.matches(info)][: query.limit]

    def ids(self, task: str) -> tuple[str, ...]:
        return tuple(row[0] for row in self._rows("SELECT id FROM ckpt_checkpoints WHERE task = %s", (task,)))

    def newest(self, task: str) -> str | None:
        rows = self._rows("SELECT id FROM ckpt_checkpoints WHERE task = %s ORDER BY created DESC, id DESC LIMIT 1", (task,))
        return rows[0][0] if rows else None

    def tasks(self) -> tuple[str, ...]:
        return tuple(sorted(row[0] for row in self._rows("SELECT DISTINCT task FROM ckpt_checkpoints", ())))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    def _one(self, columns: str, task: str, id: str, more: tuple[Any, ...] = ()) -> Any:
        rows = self._rows(f"SELECT {columns} {_ONE}", (*more, task, id))
        if not rows:
            raise CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r} in {self.location}")
        return rows[0]

    def _delete(self, connection: Any, task: str, id: str) -> None:
        if not connection.execute(f"DELETE {_ONE}", (task, id)).rowcount:
            raise CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r} in {self.location}")

    def _rows(self, statement: str, values: tuple[Any, ...]) -> Sequence[Any]:
        with self._transaction("reading") as connection:
            rows: Sequence[Any] = connection.execute(statement, values, binary=True).fetchall()
            return rows

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[Any]:
        with self._lock:
            try:
                with self._opened().transaction():
                    yield self._connection
            except psycopg.Error as error:
                if self._connection is not None and self._connection.broken:
                    self._drop()
                raise _of(error, f"{doing} a checkpoint in {self.location}") from error

    def _opened(self) -> Any:
        if self._closed:
            raise StorageError("this store was closed", code="storage.closed", retryable=False)
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True, connect_timeout=_CONNECT_SECONDS)
            try:
                self._connection.execute("SET synchronous_commit = on")
                with self._connection.transaction():
                    self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
                    self._connection.execute(_SCHEMA)
            except BaseException:
                self._drop()
                raise
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _of(error: Any, doing: str) -> CheckpointError:
    state = error.sqlstate or ("08" if isinstance(error, psycopg.OperationalError) else "")
    kind, code, retryable = next((entry[1:] for entry in _TABLE if state.startswith(entry[0])), (StorageError, "storage.io", True))
    return kind(f"{doing}: {type(error).__name__} {state}".rstrip(), code=code, retryable=retryable)
