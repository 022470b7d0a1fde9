"""The tables of an SQLite store, and how each version becomes the next."""

from __future__ import annotations

from typing import Final

from ckpt_observe.support.sqlite import Migrations

_QUERY_COLUMNS = "step, status, error_class, stored_size"
MIGRATIONS: Final[Migrations] = (
    (
        """CREATE TABLE checkpoints (
            task TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, step INTEGER, status TEXT NOT NULL, error_class TEXT,
            stored_size INTEGER NOT NULL, header BLOB NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (task, id))""",
        "CREATE TABLE quarantine (task TEXT NOT NULL, id TEXT NOT NULL, header BLOB NOT NULL, payload BLOB NOT NULL)",
        "CREATE INDEX checkpoints_by_task ON checkpoints (task, created, id)",
        f"CREATE INDEX checkpoints_by_time ON checkpoints (created, id, {_QUERY_COLUMNS})",
    ),
    (
        "ALTER TABLE checkpoints ADD COLUMN facts BLOB",
        "DROP INDEX checkpoints_by_task",
        "DROP INDEX checkpoints_by_time",
        f"CREATE INDEX checkpoints_by_task ON checkpoints (task, created, id, {_QUERY_COLUMNS}, facts)",
        f"CREATE INDEX checkpoints_by_time ON checkpoints (created, id, {_QUERY_COLUMNS}, facts)",
    ),
)
# Indexes are ascending, so that a save appends to them; queries read them backwards. They hold every column that a query may filter by:
# only matching rows are visited.
