"""The file of the store: how it is made, opened and changed."""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

BUSY_SECONDS: Final = 5.0
"""How long to wait for another writer: each holds the lock for one batch."""
VERSION: Final = 1

_TABLES: Final = (
    "CREATE TABLE about (created REAL NOT NULL, id TEXT NOT NULL)",
    "CREATE TABLE series (metric TEXT, labels TEXT, point BLOB NOT NULL, PRIMARY KEY (metric, labels)) WITHOUT ROWID",
    "CREATE TABLE label (name TEXT, value TEXT, day INTEGER NOT NULL, PRIMARY KEY (name, value)) WITHOUT ROWID",
    "CREATE TABLE seen (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE)",
)


def connect(path: Path) -> sqlite3.Connection:
    """An open store with its tables. sqlite3.Error or OSError: it cannot be opened, is not ours, or is newer than we are."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):  # private from the first moment; SQLite gives -wal and -shm the same mode
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise sqlite3.DatabaseError(f"written by a newer ckpt_observe (version {version}, this one knows {VERSION}): upgrade it")
    if not version:
        with suppress(sqlite3.OperationalError):  # another process is opening it too, and asks for the same
            connection.execute("PRAGMA journal_mode = WAL")
        with transaction(connection):
            _create(connection)
    connection.execute("PRAGMA synchronous = FULL")


def _create(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA user_version").fetchone()[0]:
        return  # another process was first
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("INSERT INTO about VALUES (?, ?)", (time.time(), str(uuid.UUID(bytes=os.urandom(16), version=4))))
    connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing."""
    connection.execute("BEGIN IMMEDIATE")  # a reader that turns writer fails at once instead of waiting its turn
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
