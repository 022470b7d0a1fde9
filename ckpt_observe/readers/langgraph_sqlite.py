"""LangGraph databases in SQLite: bytes per channel, thread and step, with a connection that cannot change anything.

The file is untrusted: only plain tables are read, within a time limit, and no value is decoded beyond msgpack and JSON.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from ckpt_observe.errors import CheckpointNotFoundError
from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Breakdown, Contents, Entry, largest_first
from ckpt_observe.readers.encoded_values import ValueBudget
from ckpt_observe.readers.langgraph_rows import UNCLEAR, ThreadCheckpoint, ThreadTotals, decode_channels, decode_metadata
from ckpt_observe.readers.request import ReadRequest
from ckpt_observe.readers.selection import no_thread, select_checkpoint
from ckpt_observe.readers.source import how_to_raise
from ckpt_observe.readers.sqlite_database import is_interrupted, open_database

COLUMNS: Final = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint", "metadata"})
_WRITES_COLUMNS: Final = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id", "value"})
_MAX_VALUE: Final = 512 * 1024 * 1024
"""Bytes of the largest checkpoint that is decoded."""


def _length(column: str) -> str:
    """Return the SQL for the bytes of a column. `length` counts the characters of text."""
    return f"coalesce(CASE typeof({column}) WHEN 'blob' THEN length({column}) ELSE length(CAST({column} AS BLOB)) END, 0)"


# Lengths are read from the header of a row. Values, and columns after a large one, need all pages of the row.
_KEY: Final = "thread_id, checkpoint_ns, checkpoint_id"
_LENGTHS: Final = f"SELECT {_KEY}, {_length('checkpoint')}, {_length('metadata')} FROM checkpoints"  # noqa: S608 - our names
_WRITES: Final = f"SELECT {_KEY}, sum({_length('value')}) FROM writes"  # noqa: S608
_VALUES: Final = f"""
SELECT {_KEY}, parent_checkpoint_id, CAST(type AS TEXT), {_length("checkpoint")},
CASE WHEN {_length("checkpoint")} <= :max THEN CAST(checkpoint AS BLOB) END,
CASE WHEN {_length("metadata")} <= {_MAX_VALUE} THEN CAST(metadata AS BLOB) END FROM checkpoints
"""  # noqa: S608


def read_langgraph_sqlite(candidate: Candidate) -> Contents:
    """Return the channels of all checkpoints, of those of a thread, or of a single one."""
    request = candidate.request
    with open_database(candidate.path, request.limits) as connection:
        has_writes = candidate.has_columns("writes", _WRITES_COLUMNS)
        database = _Database(connection, candidate.path, request, has_writes=has_writes)
        return database.read_checkpoint() if request.checkpoint is not None else database.read_all()


class _Database:
    def __init__(self, connection: sqlite3.Connection, path: str, request: ReadRequest, *, has_writes: bool) -> None:
        self._connection = connection
        self._path = path
        self._request = request
        self._has_writes = has_writes
        self._budget = ValueBudget()
        self._condition = "" if request.task is None else "WHERE thread_id = :thread"

    def read_all(self) -> Contents:
        """Add up all checkpoints of the selection."""
        lengths = _Lengths(self._select(f"{_LENGTHS} {self._condition} ORDER BY {_KEY}"), self._write_sizes())
        if self._request.task is not None and not lengths.count:
            raise self._no_thread()
        totals, checkpoints, warnings = self._measure(lengths.count)
        breakdowns = [Breakdown("thread", lengths.threads(), 0), Breakdown("step", totals.steps(), lengths.size - totals.size)]
        if self._request.task is not None:
            breakdowns.append(Breakdown("checkpoint", tuple(checkpoints), lengths.size - totals.size))
        page_size = self._pragma("page_size")
        sizes = {"metadata_size": lengths.metadata_size, "writes_size": lengths.writes_size}
        return Contents(
            format="langgraph-sqlite",
            location=self._path,
            size=lengths.size,
            entries=totals.channels(),
            other_size=lengths.size - totals.channels_size,
            stored_size=page_size * self._pragma("page_count"),
            breakdowns=tuple(breakdowns),
            repeated_size=totals.repeated_size,
            prunable_size=lengths.prunable_size,
            warnings=warnings,
            metadata={"checkpoints": lengths.count, **sizes, "free_size": page_size * self._pragma("freelist_count")},
        )

    def read_checkpoint(self) -> Contents:
        """Describe the channels of one checkpoint."""
        thread, reference = self._request.task or "", self._request.checkpoint or ""
        rows = list(self._checkpoints(self._condition, "checkpoint_ns, checkpoint_id DESC", max_size=-1))
        if not rows:
            raise self._no_thread()
        selected = select_checkpoint(rows, thread, reference)  # `latest` is of the outermost graph, whose namespace is empty
        condition = "WHERE thread_id = :thread AND checkpoint_ns = :namespace AND checkpoint_id = :id"
        checkpoint = next(self._checkpoints(condition, "1", namespace=selected.namespace, id=selected.id))
        entries = checkpoint.channels.entries(self._request.depth - 1, self._budget) if checkpoint.channels else ()
        writes = self._write_sizes()[thread, selected.namespace, selected.id]
        return Contents(
            format="langgraph-sqlite",
            location=self._path,
            size=checkpoint.size,
            entries=entries,
            other_size=checkpoint.size - sum(entry.size for entry in entries),
            warnings=self._budget.warnings() if checkpoint.channels else (f"its channels are not shown, because it is {UNCLEAR}",),
            metadata={"task": thread, "id": checkpoint.id, **checkpoint.details(), "writes_size": writes},
        )

    def _measure(self, count: int) -> tuple[ThreadTotals, list[Entry], tuple[str, ...]]:
        """Decode as many checkpoints as the time allows."""
        totals, entries, warnings = ThreadTotals(), list[Entry](), []
        try:
            for checkpoint in self._selected_checkpoints():
                totals.add(checkpoint)
                if self._request.task is not None:
                    entries.append(self._checkpoint_entry(checkpoint))
        except sqlite3.OperationalError as error:
            if not is_interrupted(error):
                raise
            text = f"the time was over after the newest {totals.count} of {count} checkpoints: the channels of the others are other bytes"
            warnings.append(f"{text}. Select a task, or {how_to_raise('seconds')}")
        if totals.unclear_count:
            warnings.append(f"the channels of {totals.unclear_count} checkpoints are other bytes, because they are {UNCLEAR}")
        return totals, entries, (*warnings, *self._budget.warnings())

    def _selected_checkpoints(self) -> Iterator[ThreadCheckpoint]:
        # All in the order of the file, because a large one takes long; those of a thread by the index, because sorting values does.
        order = "rowid DESC" if self._request.task is None else "thread_id DESC, checkpoint_ns DESC, checkpoint_id DESC"
        return self._checkpoints(self._condition, order)

    def _checkpoints(self, condition: str, order: str, *, max_size: int = _MAX_VALUE, **values: str) -> Iterator[ThreadCheckpoint]:
        for row in self._select(f"{_VALUES} {condition} ORDER BY {order}", max=max_size, **values):
            parent = None if row[3] is None else str(row[3])
            yield ThreadCheckpoint(*_key(row), parent, row[5], *decode_metadata(row[7]), decode_channels(row[4], row[6]))

    def _checkpoint_entry(self, checkpoint: ThreadCheckpoint) -> Entry:
        channels = checkpoint.channels
        return Entry(
            name=checkpoint.id,
            type="checkpoint",
            size=checkpoint.size,
            items=len(channels.values) if channels else None,
            details=checkpoint.details(),
            children=channels.entries(self._request.depth - 2, self._budget) if channels and self._request.depth > 1 else (),
        )

    def _write_sizes(self) -> Counter[tuple[str, str, str]]:
        """Return the bytes of pending writes by checkpoint."""
        rows = self._select(f"{_WRITES} {self._condition} GROUP BY {_KEY}") if self._has_writes else ()
        return Counter({_key(row): int(row[3]) for row in rows})

    def _select(self, statement: str, **values: str | int) -> Iterator[tuple[Any, ...]]:
        return iter(self._connection.execute(statement, {"thread": self._request.task, **values}))

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _no_thread(self) -> CheckpointNotFoundError:
        threads = [str(thread) for (thread,) in self._connection.execute("SELECT DISTINCT thread_id FROM checkpoints LIMIT 10000")]
        return no_thread(self._path, self._request.task, threads)


class _Lengths:
    """Adds up lengths without reading values."""

    def __init__(self, rows: Iterator[tuple[Any, ...]], writes: Counter[tuple[str, str, str]]) -> None:
        self.count = self.size = self.metadata_size = newest_size = row_size = 0
        self.writes_size = writes.total()
        self._sizes: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        previous: tuple[str, ...] | None = None
        for row in rows:  # those of a thread and namespace in order, the newest last
            key = _key(row)
            if previous != key[:2]:
                newest_size += row_size
                previous = key[:2]
            row_size = row[3] + row[4] + writes[key]
            self.count += 1
            self.size += row[3]
            self.metadata_size += row[4]
            self._sizes[key[0]] += row[3]
            self._counts[key[0]] += 1
        self.prunable_size = self.size + self.metadata_size + self.writes_size - newest_size - row_size

    def threads(self) -> tuple[Entry, ...]:
        """Return a thread per entry."""
        return largest_first(Entry(name=name, type="thread", size=size, items=self._counts[name]) for name, size in self._sizes.items())


def _key(row: tuple[Any, ...]) -> tuple[str, str, str]:
    return str(row[0]), str(row[1]), str(row[2])
