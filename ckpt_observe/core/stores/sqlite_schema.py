"""The tables of an SQLite store, and what leads from those of an earlier version to them."""

from __future__ import annotations

import sqlite3

_ASKED = "step, status, error_class, stored_size"
_SCHEMA = (
    f"""
CREATE TABLE checkpoints (
    task TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, step INTEGER, status TEXT NOT NULL, error_class TEXT,
    stored_size INTEGER NOT NULL, header BLOB NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (task, id));
CREATE TABLE quarantine (task TEXT NOT NULL, id TEXT NOT NULL, header BLOB NOT NULL, payload BLOB NOT NULL);
CREATE INDEX checkpoints_by_task ON checkpoints (task, created, id);
CREATE INDEX checkpoints_by_time ON checkpoints (created, id, {_ASKED})""",
    f"""
ALTER TABLE checkpoints ADD COLUMN facts BLOB;
DROP INDEX checkpoints_by_task;
DROP INDEX checkpoints_by_time;
CREATE INDEX checkpoints_by_task ON checkpoints (task, created, id, {_ASKED}, facts);
CREATE INDEX checkpoints_by_time ON checkpoints (created, id, {_ASKED}, facts)""",
)
"""What leads from each version to the next."""
# indexes ascend, so that a save appends to them; read backwards. They hold every column that a query may ask about: rows are visited
# only where they match
VERSION = len(_SCHEMA)


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def brought_on(connection: sqlite3.Connection) -> bool:
    """Bring the tables to our version; whether they were there in an earlier one."""
    connection.execute("BEGIN IMMEDIATE")
    found = version(connection)  # again, for another process may have been faster
    for statement in ";".join(_SCHEMA[found:]).split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
    return 0 < found < VERSION
