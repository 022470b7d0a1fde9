"""Checkpoints in one SQLite file: `sqlite:///path/file.db`.

WAL with synchronous=FULL: when `put` returns, the transaction is on disk. Each put is one transaction, so a reader sees all of a
checkpoint or nothing. Safe between threads (one connection, one lock) and processes. Lists and finds by index. A checkpoint can have up
to 1 GB, SQLite's limit for a value.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.stores import sql
from ckpt_observe.core.stores.sql import SqlStore
from ckpt_observe.core.stores.store import Capabilities
from ckpt_observe.core.stores.urls import path_to_url
from ckpt_observe.errors import (
    AccessError,
    CapacityError,
    CheckpointError,
    CompatibilityError,
    ConfigError,
    ConflictError,
    IntegrityError,
    StorageError,
)
from ckpt_observe.support import files
from ckpt_observe.support import sqlite as database
from ckpt_observe.support.advice import add_advice
from ckpt_observe.support.errnos import translate_os_errors
from ckpt_observe.support.host_exceptions import raise_host_exception

# Indexes are ascending, so that a save appends to them, and are read backwards. They contain every column that a query may ask for, so
# only matching rows are read.
_QUERIED = "step, status, error_class, stored_size"
_MIGRATIONS = (
    (
        """CREATE TABLE checkpoints (
    task TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, step INTEGER, status TEXT NOT NULL, error_class TEXT,
    stored_size INTEGER NOT NULL, header BLOB NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (task, id))""",
        "CREATE TABLE quarantine (task TEXT NOT NULL, id TEXT NOT NULL, header BLOB NOT NULL, payload BLOB NOT NULL)",
        "CREATE INDEX checkpoints_by_task ON checkpoints (task, created, id)",
        f"CREATE INDEX checkpoints_by_time ON checkpoints (created, id, {_QUERIED})",
    ),
    (
        "ALTER TABLE checkpoints ADD COLUMN facts BLOB",
        "DROP INDEX checkpoints_by_task",
        "DROP INDEX checkpoints_by_time",
        f"CREATE INDEX checkpoints_by_task ON checkpoints (task, created, id, {_QUERIED}, facts)",
        f"CREATE INDEX checkpoints_by_time ON checkpoints (created, id, {_QUERIED}, facts)",
    ),
)
_INSERT = f"INSERT INTO checkpoints ({sql.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_SELECT = "SELECT header, payload FROM checkpoints WHERE task = ? AND id = ?"
_WAL_SIZE = 4 << 20
"""Bytes to which SQLite's log grows before it is reused from its start: 1000 pages."""
_PUTS_BEFORE_EXTENDING = 16
"""The log is extended to its full size after this many saves of a connection. With fewer saves it would not pay off."""
_BUSY_SECONDS = 30.0
"""How long to wait for the transaction of another process."""

_RAISED = (sqlite3.Error, OverflowError, UnicodeDecodeError)
_ERRORS: dict[int, tuple[type[CheckpointError], str, bool]] = {
    sqlite3.SQLITE_CONSTRAINT: (ConflictError, "conflict.exists", False),
    sqlite3.SQLITE_BUSY: (ConflictError, "conflict.locked", True),
    sqlite3.SQLITE_LOCKED: (ConflictError, "conflict.locked", True),
    sqlite3.SQLITE_FULL: (CapacityError, "storage.no_space", False),
    sqlite3.SQLITE_TOOBIG: (CapacityError, "storage.too_large", False),
    sqlite3.SQLITE_NOMEM: (CapacityError, "memory.exhausted", False),
    sqlite3.SQLITE_CANTOPEN: (AccessError, "storage.permission", False),
    sqlite3.SQLITE_PERM: (AccessError, "storage.permission", False),
    sqlite3.SQLITE_AUTH: (AccessError, "storage.permission", False),
    sqlite3.SQLITE_READONLY: (StorageError, "storage.read_only", False),
    sqlite3.SQLITE_CORRUPT: (IntegrityError, "integrity.malformed", False),
    sqlite3.SQLITE_NOTADB: (IntegrityError, "integrity.malformed", False),
    sqlite3.SQLITE_ERROR: (IntegrityError, "integrity.malformed", False),  # our statements are valid, so the tables are damaged
    sqlite3.SQLITE_IOERR: (StorageError, "storage.io", True),
}
"""Exception, code and whether a retry can help, by SQLite's primary result code."""


class SqliteStore(SqlStore):
    """A table of checkpoints in a file."""

    kind = "sqlite"
    capabilities = Capabilities(durability="machine", writers="processes", max_size=10**9, reads_ranges=True, has_index=True)
    _has_term = "instr(facts, ?)"

    def __init__(self, url: str) -> None:
        path = unquote(url.partition("://")[2])
        if not path:
            raise ConfigError(f"a SQLite store needs a URL such as sqlite:///path/file.db, not {url!r}")
        self._path = os.path.abspath(path)
        super().__init__(path_to_url("sqlite", self._path), "checkpoints", "quarantine", "?")
        self._put_count = 0

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        row = sql.to_row(info, blob, self._terms(info))
        try:  # without the helpers below, for speed: every save calls this
            with self._lock:
                connection = self._open()
                connection.execute(_INSERT, row)  # a single statement is a transaction
                self._put_count += 1
                if self._put_count == _PUTS_BEFORE_EXTENDING:
                    self._extend_log(connection)
        except _RAISED as error:
            raise _to_checkpoint_error(error, f"saving a checkpoint in {self._path}") from error

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        rows = [sql.to_row(info, blob, self._terms(info)) for info, blob in batch]
        with self._transaction("saving") as connection:
            connection.executemany(_INSERT, rows)

    def get(self, task: str, id: str) -> Buffer:
        try:  # without the helpers below, for speed: every save and load calls this
            with self._lock:
                row = self._open().execute(_SELECT, (task, id)).fetchone()
        except _RAISED as error:
            raise _to_checkpoint_error(error, f"reading {self._path}") from error
        if row is None:
            raise self._not_found(task, id)
        try:
            return b"".join(row)
        except TypeError as error:
            raise sql.column_error() from error

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        length = self._columns(int, "length(header)", task, id)[0]
        if start < length:
            return super().get_range(task, id, start, size)
        part = "coalesce(substr(payload, ?, ?), x'')"  # substr of an empty payload is NULL
        return bytes(self._columns(Buffer, part, task, id, (start - length + 1, size))[0])

    @staticmethod
    def _encode_terms(terms: list[int]) -> bytes:
        """Return four bytes per term. Short, because SQLite searches them linearly."""
        return b"".join([term.to_bytes(4, "big") for term in terms])

    def _rows(self, statement: str, values: tuple[Any, ...]) -> Sequence[Any]:
        with self._lock, _translate_errors(f"reading {self._path}"):
            rows: Sequence[Any] = self._open().execute(statement, values).fetchall()
            return rows

    @contextmanager
    def _transaction(self, action: str) -> Iterator[sqlite3.Connection]:
        with self._lock, _translate_errors(f"{action} a checkpoint in {self._path}"):
            connection = self._open()
            with database.transaction(connection):
                yield connection

    def _extend_log(self, connection: sqlite3.Connection) -> None:
        """Append zeros to SQLite's log, which no reader takes for a frame, so that commits overwrite blocks instead of adding them.

        A commit that makes the file longer is also a commit of the file system, and its sync takes twice as long (0.43 instead of 0.19 ms
        on ext4).
        """
        try:
            with database.transaction(connection):  # no other process appends meanwhile
                log = os.open(f"{self._path}-wal", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    size, disk = os.fstat(log).st_size, os.fstatvfs(log)
                    if disk.f_bavail * disk.f_frsize > 16 * _WAL_SIZE:  # not on a small or full disk
                        os.pwrite(log, bytes(max(0, _WAL_SIZE - size)), size)
                finally:
                    os.close(log)
        except (OSError, AttributeError, sqlite3.Error) as error:  # only an optimization: no space, another system, or a busy database
            raise_host_exception(error)

    def _connect(self) -> tuple[sqlite3.Connection, bool]:
        with translate_os_errors(f"opening {self._path}"):
            if not os.path.isdir(os.path.dirname(self._path)):
                files.make_directory(os.path.dirname(self._path))
            database.create_private_file(self._path)
            database.check_writable(self._path)
        connection = database.connect(self._path, busy_seconds=_BUSY_SECONDS, create=False)
        self._put_count = 0
        connection.text_factory = _decode_text
        try:
            database.enable_wal(connection)
            database.sync_commits(connection)
            version, newest = database.schema_version(connection), len(_MIGRATIONS)
            if version > newest:
                raise CompatibilityError(
                    f"{self._path} has schema version {version}, but this program supports up to {newest}: upgrade ckpt-observe"
                )
            if version < newest:
                with database.transaction(connection):
                    version = database.upgrade_schema(connection, _MIGRATIONS)
            return connection, 0 < version < newest
        except BaseException:
            connection.close()
            raise


def _decode_text(text: bytes) -> str | bytes:
    """Return text, but invalid UTF-8 as bytes instead of raising: a damaged row must not hide the others."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


@contextmanager
def _translate_errors(action: str) -> Iterator[None]:
    try:
        yield
    except _RAISED as error:
        raise _to_checkpoint_error(error, action) from error


def _to_checkpoint_error(error: Exception, action: str) -> CheckpointError:
    if isinstance(error, OverflowError):
        return CapacityError(add_advice(f"{action}: {error}", "storage.too_large"), code="storage.too_large")
    if isinstance(error, UnicodeDecodeError):  # from SQLite's own message, which quotes the damaged text
        return IntegrityError(add_advice(f"{action}: {error}", "integrity.malformed"), code="integrity.malformed")
    kind, code, retryable = _ERRORS.get(database.primary_code(error), (StorageError, "storage.io", True))
    return kind(add_advice(f"{action}: {error}", code), code=code, retryable=retryable)
