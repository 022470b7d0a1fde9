"""Checkpoints in one SQLite file: `sqlite:///path/file.db`.

WAL with synchronous=FULL: when `put` returns, the transaction is on the disk. Each put is one transaction, so a reader
sees all of a checkpoint or nothing. Safe between threads (one connection, one lock) and processes. Lists and finds by index.
A checkpoint may have up to 1 GB, SQLite's limit for a value.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.stores import sql
from ckpt_observe.core.stores.base import Promise
from ckpt_observe.core.stores.locate import url_of
from ckpt_observe.core.stores.sql import SqlStore
from ckpt_observe.core.stores.sqlite_schema import MIGRATIONS
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
from ckpt_observe.support import files, sqlite
from ckpt_observe.support.errnos import translate_os_errors

_INSERT = f"INSERT INTO checkpoints ({sql.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_SELECT = "SELECT header, payload FROM checkpoints WHERE task = ? AND id = ?"
_RAISED = (sqlite3.Error, OverflowError, UnicodeDecodeError)
_LOG_SIZE = 4 << 20
"""What SQLite's log grows to before it begins again from its start: 1000 pages."""
_LOG_AFTER = 16
"""Saves of one connection after which its log is made that large at once. Fewer would not gain what that takes."""
_LOCK_WAIT = 30.0
"""Seconds to wait for another process's transaction: longer than any save of ours, shorter than anybody's patience."""

_TABLE: dict[int, tuple[type[CheckpointError], str, bool]] = {
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
    sqlite3.SQLITE_ERROR: (IntegrityError, "integrity.malformed", False),  # our statements are good: the tables are not those we made
    sqlite3.SQLITE_IOERR: (StorageError, "storage.io", True),
}


class SqliteStore(SqlStore):
    """A table of checkpoints."""

    kind = "sqlite"
    promise = Promise(durable="machine", shared="processes", largest=10**9, ranged=True, indexed=True)
    _has = "instr(facts, ?)"

    def __init__(self, url: str) -> None:
        place = unquote(url.partition("://")[2])
        if not place:
            raise ConfigError(f"an SQLite store is sqlite:///path/file.db, not {url!r}")
        self._path = os.path.abspath(place)
        super().__init__(url_of("sqlite", self._path), "checkpoints", "quarantine", "?")
        self._puts = 0

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        row = sql.row(info, blob, self._facts(info))
        try:  # without the helpers below: every save comes through here
            with self._lock:
                connection = self._opened()
                connection.execute(_INSERT, row)  # a statement by itself is a transaction
                self._puts += 1
                if self._puts == _LOG_AFTER:
                    self._extend_log(connection)
        except _RAISED as error:
            raise _of(error, f"saving a checkpoint in {self._path}") from error

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        rows = [sql.row(info, blob, self._facts(info)) for info, blob in batch]
        with self._transaction("saving") as connection:
            connection.executemany(_INSERT, rows)

    def get(self, task: str, id: str) -> Buffer:
        try:  # and every save and load through here
            with self._lock:
                found = self._opened().execute(_SELECT, (task, id)).fetchone()
        except _RAISED as error:
            raise _of(error, f"reading {self._path}") from error
        if found is None:
            raise self._missing(task, id)
        try:
            return b"".join(found)
        except TypeError as error:
            raise sql.unsound() from error

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        length = self._one(int, "length(header)", task, id)[0]
        if start < length:
            return super().get_range(task, id, start, size)
        part = "coalesce(substr(payload, ?, ?), x'')"  # no part of nothing is NULL
        return bytes(self._one(Buffer, part, task, id, (start - length + 1, size))[0])

    @staticmethod
    def _kept(known: list[int]) -> bytes:
        """Four bytes for each: little to look through."""
        return b"".join([fact.to_bytes(4, "big") for fact in known])

    def _rows(self, statement: str, values: tuple[Any, ...]) -> Sequence[Any]:
        with self._lock, _translated(f"reading {self._path}"):
            rows: Sequence[Any] = self._opened().execute(statement, values).fetchall()
            return rows

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._lock, _translated(f"{doing} a checkpoint in {self._path}"):
            connection: sqlite3.Connection = self._opened()
            with sqlite.transaction(connection):
                yield connection

    def _extend_log(self, connection: sqlite3.Connection) -> None:
        """Write zeros behind what the log has; they are no frame, so no reader takes them for one.

        A commit then overwrites blocks that are there. One that makes the file longer is also a commit of the file system, and its sync
        takes twice as long (0.43 against 0.19 ms on ext4).
        """
        try:
            connection.execute("BEGIN IMMEDIATE")  # nobody else appends meanwhile
            log = os.open(f"{self._path}-wal", os.O_WRONLY | os.O_CLOEXEC)
            try:
                size, room = os.fstat(log).st_size, os.fstatvfs(log)
                if room.f_bavail * room.f_frsize > 16 * _LOG_SIZE:  # on a small or full disk the space is worth more than the time
                    os.pwrite(log, bytes(max(0, _LOG_SIZE - size)), size)
            finally:
                os.close(log)
        except (OSError, AttributeError, sqlite3.Error):  # only about speed: no room, not this system, or somebody else's turn
            pass
        finally:
            sqlite.rollback(connection)

    def _connect(self) -> tuple[sqlite3.Connection, bool]:
        with translate_os_errors(f"opening {self._path}"):
            if not os.path.isdir(os.path.dirname(self._path)):
                files.make_directory(os.path.dirname(self._path))
            sqlite.create_private_file(self._path)
            if not os.access(self._path, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # SQLite would open it read-only
        self._puts = 0
        connection = sqlite.connect(self._path, busy_seconds=_LOCK_WAIT, create=False)
        connection.text_factory = _text
        try:
            sqlite.enable_wal(connection)
            sqlite.sync_commits(connection)
            version, newest = sqlite.schema_version(connection), len(MIGRATIONS)
            if version > newest:
                raise CompatibilityError(f"{self._path} has schema {version}, this program knows up to {newest}: upgrade ckpt-observe")
            if version < newest:
                with sqlite.transaction(connection):
                    version = sqlite.upgrade_schema(connection, MIGRATIONS)  # another process may have been faster
            return connection, 0 < version < newest
        except BaseException:
            connection.close()
            raise


def _text(kept: bytes) -> str | bytes:
    """Text that is none stays bytes, for SQLite does not look into it: of a damaged row, and no reason to leave out the others."""
    try:
        return kept.decode()
    except UnicodeDecodeError:
        return kept


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except _RAISED as error:
        raise _of(error, doing) from error


def _of(error: Exception, doing: str) -> CheckpointError:
    if isinstance(error, OverflowError):
        return CapacityError(f"{doing}: {error}", code="storage.too_large")
    if isinstance(error, UnicodeDecodeError):  # SQLite names what it found damaged, with the damage
        return IntegrityError(f"{doing}: {error}", code="integrity.malformed")
    kind, code, retryable = _TABLE.get(sqlite.primary_code(error), (StorageError, "storage.io", True))
    return kind(f"{doing}: {error}", code=code, retryable=retryable)
