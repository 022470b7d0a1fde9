"""Checkpoints in PostgreSQL: `postgresql://user@host/database`. Extra `postgres`.

When `put` returns, the transaction is committed with synchronous_commit on, whatever the server's default: the data is on its disk.
Safe between threads, processes and hosts. Lists and finds by index. After a lost connection, or if the server is silent for 30 seconds,
the next call reconnects; for retries use `RetryingStore`. A checkpoint can have up to 1 GB, PostgreSQL's limit for a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.stores import sql
from ckpt_observe.core.stores.sql import SqlStore
from ckpt_observe.core.stores.store import Capabilities
from ckpt_observe.core.stores.urls import server_address
from ckpt_observe.errors import CheckpointError, MissingExtraError
from ckpt_observe.support import sqlstates

try:
    import psycopg
except ImportError as error:
    raise MissingExtraError("the PostgreSQL store", "postgres") from error

from ckpt_observe.core.stores import postgres_connection  # needs psycopg, too

_SCHEMA = """
CREATE TABLE IF NOT EXISTS ckpt_checkpoints (
    task text NOT NULL, id text COLLATE "C" NOT NULL, created bigint NOT NULL, step bigint, status text NOT NULL, error_class text,
    stored_size bigint NOT NULL, header bytea NOT NULL, payload bytea NOT NULL, PRIMARY KEY (task, id));
CREATE TABLE IF NOT EXISTS ckpt_quarantine (task text NOT NULL, id text NOT NULL, header bytea NOT NULL, payload bytea NOT NULL);
CREATE INDEX IF NOT EXISTS ckpt_checkpoints_by_task ON ckpt_checkpoints (task, created DESC, id DESC);
CREATE INDEX IF NOT EXISTS ckpt_checkpoints_by_time ON ckpt_checkpoints (created DESC, id DESC);
ALTER TABLE ckpt_checkpoints ADD COLUMN IF NOT EXISTS facts bigint[];
CREATE INDEX IF NOT EXISTS ckpt_checkpoints_by_fact ON ckpt_checkpoints USING gin (facts);
CREATE INDEX IF NOT EXISTS ckpt_checkpoints_unknown ON ckpt_checkpoints (created DESC, id DESC) WHERE facts IS NULL;
"""
_SELECT_STATE = """
SELECT checkpoints IS NOT NULL, EXISTS (SELECT FROM pg_attribute WHERE attrelid = checkpoints AND attname = 'facts')
FROM to_regclass('ckpt_checkpoints') AS checkpoints
"""
"""Whether the table exists, and whether it has the newest column."""
_INSERT = f"INSERT INTO ckpt_checkpoints ({sql.COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"  # noqa: S608
_SETUP_LOCK = 0x636B7074
"""Number of the advisory lock for creating tables: two CREATE IF NOT EXISTS at the same time can still collide."""

_STATES = ((psycopg.DataError, "22000"), (psycopg.ProgrammingError, "42000"))
"""The SQLSTATE that stands for an error which psycopg raises itself, before it reaches the server."""


class PostgresStore(SqlStore):
    """A table of checkpoints on a server."""

    kind = "postgresql"
    capabilities = Capabilities(durability="machine", writers="hosts", max_size=10**9, reads_ranges=True, has_index=True)
    _has_term = "facts @> %s::bigint[]"

    def __init__(self, url: str) -> None:
        host, port, path = server_address(url)
        location = f"postgresql://{host}{f':{port}' if port else ''}{path}"
        super().__init__(location, "ckpt_checkpoints", "ckpt_quarantine", "%s")
        self._url = url

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        self.put_many([(info, blob)])

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        rows = [sql.to_row(info, blob, self._terms(info)) for info, blob in batch]
        with self._transaction("saving") as connection, connection.cursor() as cursor:
            cursor.executemany(_INSERT, rows)

    def get(self, task: str, id: str) -> Buffer:
        header, payload = self._columns(Buffer, "header, payload", task, id)
        return bytes(header) + bytes(payload)

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        whole = "substring(header || payload from %s for %s)"
        return bytes(self._columns(Buffer, whole, task, id, (start + 1, size))[0])

    @staticmethod
    def _encode_terms(terms: list[int]) -> list[int]:
        return terms

    def _rows(self, statement: str, values: tuple[Any, ...]) -> Sequence[Any]:
        with self._transaction("reading") as connection:
            rows: Sequence[Any] = connection.execute(statement, values, binary=True).fetchall()
            return rows

    @contextmanager
    def _transaction(self, action: str) -> Iterator[Any]:
        with self._lock:
            try:
                with self._open().transaction():
                    yield self._connection
            except psycopg.Error as error:
                if self._connection is not None and self._connection.broken:
                    self._disconnect()
                raise _to_checkpoint_error(error, f"{action} a checkpoint in {self.location}") from error

    def _open(self) -> Any:
        if self._connection is not None and self._connection.closed:
            self._connection = None
        return super()._open()

    def _connect(self) -> tuple[Any, bool]:
        connection = postgres_connection.connect(self._url)
        try:
            connection.execute("SET synchronous_commit = on")
            exists, is_current = connection.execute(_SELECT_STATE).fetchone()
            if not is_current:  # even an ALTER TABLE without effect waits for all users of the table
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SETUP_LOCK,))
                    connection.execute(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        connection.silence_seconds = postgres_connection.SILENCE_SECONDS
        return connection, exists and not is_current


def _to_checkpoint_error(error: Any, action: str) -> CheckpointError:
    if isinstance(error, postgres_connection.SilentServerError):
        return sqlstates.to_checkpoint_error("57014", f"{action}: {error}")
    state = error.sqlstate or next((state for kind, state in _STATES if isinstance(error, kind)), None)
    if state is None:  # psycopg says nothing more about a connection that failed
        return sqlstates.connection_to_checkpoint_error(str(error), action)
    return sqlstates.to_checkpoint_error(state, f"{action}: {type(error).__name__} {error.sqlstate or ''}".rstrip())
