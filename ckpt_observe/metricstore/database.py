"""The file of the store: how it is made, opened and changed."""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt_observe.support import sqlite

BUSY_SECONDS: Final = 5.0
"""How long to wait for another writer: each holds the lock for one batch."""

_MIGRATIONS: Final = (
    (
        "CREATE TABLE about (created REAL NOT NULL, id TEXT NOT NULL)",
        "CREATE TABLE series (metric TEXT, labels TEXT, point BLOB NOT NULL, PRIMARY KEY (metric, labels)) WITHOUT ROWID",
        "CREATE TABLE label (name TEXT, value TEXT, day INTEGER NOT NULL, PRIMARY KEY (name, value)) WITHOUT ROWID",
        "CREATE TABLE seen (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE)",
    ),
)
VERSION: Final = len(_MIGRATIONS)


def connect(path: Path) -> sqlite3.Connection:
    """Open the store and create its tables if needed. sqlite3.Error or OSError if it cannot be opened, is not ours, or is too new."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = sqlite.connect(path, busy_seconds=BUSY_SECONDS)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    version = sqlite.schema_version(connection)
    if version > VERSION:
        raise sqlite3.DatabaseError(f"written by a newer ckpt_observe (version {version}, this one knows {VERSION}): upgrade it")
    if not version:
        with suppress(sqlite3.OperationalError):  # another process is opening the new file, too, and enables it
            sqlite.enable_wal(connection)
        with sqlite.transaction(connection):
            if sqlite.upgrade_schema(connection, _MIGRATIONS) == 0:
                connection.execute("INSERT INTO about VALUES (?, ?)", (time.time(), str(uuid.UUID(bytes=os.urandom(16), version=4))))
    sqlite.sync_commits(connection)
