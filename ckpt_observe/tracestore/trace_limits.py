"""Keeps the store within its limits of age and size. What is removed is counted in the store itself.

Whole traces are removed, that which ended first before the others, in small transactions, so that writers of other processes never wait
long. If the last trace alone is too large, its oldest operations are removed.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from ckpt_observe.support.sqlite import release_free_pages, transaction

DAY: Final = 86_400 * 1_000_000_000
"""Nanoseconds."""
MAX_ROWS: Final = 500
"""Operations that are removed in one transaction."""
_MAX_TRANSACTIONS: Final = 40
"""Transactions after one batch. They remove more than a batch adds; what is left is removed after the next batch."""
_SPARE_PAGES: Final = 1000
"""Free pages that the file may have, besides a fifth of its size: they are used again."""
_VACUUM_PAGES: Final = 500
"""Free pages that are given back to the file system after one batch."""
_COUNT: Final = """
INSERT INTO removed VALUES (?, ?, ?, ?) ON CONFLICT (reason) DO UPDATE SET
    traces = traces + excluded.traces, operations = operations + excluded.operations, last_unix_nano = excluded.last_unix_nano
"""
_OLDEST_OPERATIONS: Final = "SELECT id, operation, resource_id FROM operation WHERE trace = ? ORDER BY end_unix_nano LIMIT ?"
_REMOVE_RESOURCE: Final = "DELETE FROM resource WHERE id = ? AND NOT EXISTS (SELECT 1 FROM operation WHERE resource_id = resource.id)"


class TraceLimits(NamedTuple):
    """How much the store keeps. 0 means everything."""

    days: int = 30
    """Traces that ended longer ago are removed."""
    bytes: int = 1 << 30
    """Beyond this size, the oldest traces are removed. About a million operations fit into the default, which is years of one AI agent."""


DEFAULT_LIMITS: Final = TraceLimits()


class LimitEnforcer:
    """Enforces the limits of one store, through the connection of its writer."""

    def __init__(self, connection: sqlite3.Connection, limits: TraceLimits) -> None:
        self._connection, self._limits = connection, limits

    def enforce(self, now_unix_nano: int) -> None:
        """Remove what is too old or too much, a bounded number of operations per call."""
        transactions = 0
        while transactions < _MAX_TRANSACTIONS and (reason := self._reason(now_unix_nano)):
            if not self._remove_some(reason, now_unix_nano):
                break
            transactions += 1
        self._shrink()

    def _reason(self, now_unix_nano: int) -> str | None:
        """Return why something has to be removed: `age` or `size`; None if nothing has."""
        if self._limits.days:
            end = self._connection.execute("SELECT min(end_unix_nano) FROM trace").fetchone()[0]
            if end is not None and end < now_unix_nano - self._limits.days * DAY:
                return "age"
        return "size" if self._limits.bytes and self._used_bytes() > self._limits.bytes else None

    def _remove_some(self, reason: str, now_unix_nano: int) -> bool:
        """Remove operations of the trace that ended first, and the trace with its last operation. Return False if there is nothing left."""
        with transaction(self._connection):
            run = self._connection.execute
            traces = [trace for (trace,) in run("SELECT id FROM trace ORDER BY end_unix_nano, id LIMIT 2")]
            limit = MAX_ROWS
            if len(traces) == 1 and reason == "size":
                count = run("SELECT count(*) FROM operation WHERE trace = ?", traces).fetchone()[0]
                limit = min(MAX_ROWS, max(count // 10, 1), count - 1)
            if not traces or limit < 1:
                return False
            rows = run(_OLDEST_OPERATIONS, (traces[0], limit)).fetchall()
            self._connection.executemany("DELETE FROM operation WHERE id = ?", [(id,) for id, _, _ in rows])
            self._connection.executemany(_REMOVE_RESOURCE, {(resource,) for _, _, resource in rows})
            is_gone = len(rows) < limit or not run("SELECT 1 FROM operation WHERE trace = ?", traces[:1]).fetchone()
            if is_gone:
                run("DELETE FROM trace WHERE id = ?", traces[:1])
            run(_COUNT, (reason, int(is_gone), sum(operation is not None for _, operation, _ in rows), now_unix_nano))
        return True

    def _used_bytes(self) -> int:
        """Return the size of the pages in use. Free pages are reused before the file grows."""
        return (self._pragma("page_count") - self._pragma("freelist_count")) * self._pragma("page_size")

    def _shrink(self) -> None:
        """Give free pages back to the file system if there are many."""
        if self._pragma("freelist_count") > _SPARE_PAGES + self._pragma("page_count") // 5:
            release_free_pages(self._connection, _VACUUM_PAGES)

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])
