"""SQLite files of others, which may be hostile: a connection that cannot change anything, and the plain tables."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ckpt_observe.errors import AccessError, ConflictError, DeadlineError, IntegrityError
from ckpt_observe.readers.source import Limits, how_to_raise, malformed
from ckpt_observe.support import sqlite
from ckpt_observe.support.advice import add_advice
from ckpt_observe.support.errnos import translate_os_errors

_PLAIN_COLUMN: Final = 0
"""Value of `hidden` in `table_xinfo`. Generated columns run expressions of the file, and hidden ones belong to virtual tables."""


@contextmanager
def open_database(path: str, limits: Limits) -> Iterator[sqlite3.Connection]:
    """Open a database read-only. Errors of SQLite in the block become CheckpointErrors."""
    connection = None
    try:
        with translate_os_errors(f"opening {path}"):
            is_immutable = not sqlite.journal_exists(path)
            before = _state(path)
            connection = sqlite.connect_read_only(path, seconds=limits.seconds, immutable=is_immutable)
            connection.text_factory = lambda text: text.decode(errors="replace")  # a damaged row must not hide the others
        with sqlite.snapshot(connection):  # what the program saves meanwhile is not seen
            yield connection
        with translate_os_errors(f"reading {path}"):
            if is_immutable and _state(path) != before:  # it was read without a lock
                text = f"{path} was changed while it was read"
                raise ConflictError(add_advice(text, "conflict.locked"), code="conflict.locked", retryable=True)
    except sqlite3.Error as error:
        code = sqlite.primary_code(error)
        if code == sqlite3.SQLITE_INTERRUPT:
            text = f"reading {path} took longer than {limits.seconds:g} s; select a task, or {how_to_raise('seconds')}"
            raise DeadlineError(text) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            text = add_advice(f"{path} is locked by another process", "conflict.locked")
            raise ConflictError(text, code="conflict.locked", retryable=True) from error
        if code == sqlite3.SQLITE_CANTOPEN:
            text = add_advice(f"SQLite cannot open {path}, or its log", "storage.permission")
            raise AccessError(text, code="storage.permission") from error
        raise malformed(path, f"SQLite cannot read it: {error}") from error
    finally:
        if connection is not None:
            connection.close()


def is_interrupted(error: sqlite3.Error) -> bool:
    """Return whether the time limit ended a statement."""
    return sqlite.primary_code(error) == sqlite3.SQLITE_INTERRUPT


def plain_tables(path: str, limits: Limits) -> dict[str, frozenset[str]] | None:
    """Return the columns of each table; None if the file is no database.

    Views, virtual tables and tables with generated columns are left out, because reading them runs SQL of the file. SQLite itself decides
    whether it is a database: if we opened the file to look, closing it would drop the locks that this process may hold on it
    (https://www.sqlite.org/howtocorrupt.html, section 2.2).
    """
    try:
        with open_database(path, limits) as connection:
            rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' LIMIT 1000").fetchall()
            names = [str(name) for name, sql in rows if not str(sql).upper().lstrip().startswith("CREATE VIRTUAL")]
            tables = {name: connection.execute("SELECT name, hidden FROM pragma_table_xinfo(?)", (name,)).fetchall() for name in names}
    except IntegrityError as error:
        if sqlite.primary_code(error.__cause__ or error) == sqlite3.SQLITE_NOTADB:
            return None
        raise
    return {
        name: frozenset(str(column) for column, _ in columns)
        for name, columns in tables.items()
        if all(hidden == _PLAIN_COLUMN for _, hidden in columns)
    }


def _state(path: str) -> tuple[int, int, bool]:
    """Return what shows that a file was changed: its size, its time, and whether a program is about to write to it.

    The log of a database in WAL mode does not: a program that only opens the database creates it, and what it saves there is not in the
    file.
    """
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, sqlite.rollback_journal_exists(path)
