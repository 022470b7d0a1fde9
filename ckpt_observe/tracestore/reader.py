"""Reads traces from the store. Every list follows an index, by time or by id, and stops at its limit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.support import sqlite
from ckpt_observe.tracestore import database
from ckpt_observe.tracestore.database import UNINDEXED, translate_errors
from ckpt_observe.tracestore.operation_filter import ALL, ATTRIBUTES, SERVICE, OperationFilter
from ckpt_observe.tracestore.operation_groups import OperationGroup
from ckpt_observe.tracestore.operation_rows import READ_COLUMNS, decode_resource, from_row
from ckpt_observe.tracestore.summary import TraceSummary
from ckpt_observe.tracestore.tree import walk

_SUMMARY: Final = "SELECT trace_id, name, start_unix_nano, end_unix_nano, spans, operations, errors, interrupted FROM trace "
_NEWEST: Final = _SUMMARY + "WHERE end_unix_nano >= ? AND end_unix_nano < ? ORDER BY end_unix_nano DESC LIMIT ?"
_BY_ID: Final = _SUMMARY + "WHERE trace_id = ?"
_BY_PREFIX: Final = _SUMMARY + "WHERE trace_id >= ? AND trace_id < ? ORDER BY trace_id LIMIT ?"
_COLUMNS: Final = ", ".join(f"operation.{column}" for column in READ_COLUMNS)
_OPERATIONS: Final = (
    f"SELECT operation.id, trace.trace_id, resource.attributes, {_COLUMNS} FROM operation "  # noqa: S608, our own names
    "CROSS JOIN trace ON trace.id = operation.trace LEFT JOIN resource ON resource.id = operation.resource_id "  # in this order of tables
)
_PHASES: Final = READ_COLUMNS.index("phases")
_BY_TRACE: Final = _OPERATIONS + "WHERE operation.trace = (SELECT id FROM trace WHERE trace_id = ?)"  # noqa: S608
_STORED_AFTER: Final = _OPERATIONS + "WHERE operation.id > ? ORDER BY operation.id LIMIT ?"
_SERVICE: Final = f"operation.resource_id IN (SELECT id FROM resource WHERE json_extract(attributes, '$.\"{SERVICE}\"') = ?)"  # noqa: S608, our own name
_LAST_STEP: Final = (
    f"SELECT start_unix_nano, json_extract(attributes, '$.\"{names.STEP}\"') AS step FROM operation "  # noqa: S608, our own name
    f"WHERE task_id = ? AND operation = 'save' AND typeof(step) = 'integer' "
    f"AND json_extract(attributes, '$.\"{names.NAMESPACE}\"') IS NULL ORDER BY end_unix_nano DESC LIMIT 1"
)
_TASK_NAMES: Final = "SELECT DISTINCT task_name FROM operation WHERE task_name IS NOT NULL"
_SERVICES: Final = f"SELECT DISTINCT json_extract(attributes, '$.\"{SERVICE}\"') AS service FROM resource WHERE service IS NOT NULL"  # noqa: S608, our own name
_MAX_INTEGER: Final = (1 << 63) - 1


def _file_state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


class TraceReader:
    """Reads one store. Any number of readers may work while others write. TraceStoreError if the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._immutable_state = _file_state(path) if sqlite.is_immutable(path) else None
        """Of a file that is read without locks, so that SQLite does not notice a change."""
        self._connection = database.connect(path, create=False, immutable=self._immutable_state is not None)
        self._connection.execute("PRAGMA query_only = ON")
        self._resources: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def is_outdated(self) -> bool:
        """Return whether the file, which nothing could change when it was opened, has changed or can change now: open it again."""
        if self._immutable_state is None:
            return False
        return not sqlite.is_immutable(self.path) or _file_state(self.path) != self._immutable_state

    def totals(self) -> tuple[int, int]:
        """Return the number of traces and of their operations."""
        with translate_errors(self.path):
            traces, operations = self._connection.execute("SELECT count(*), coalesce(sum(operations), 0) FROM trace").fetchone()
        return traces, operations

    def task_titles(self) -> list[str]:
        """Return the names of all tasks and programs, sorted."""
        with translate_errors(self.path):
            return sorted({str(name) for query in (_TASK_NAMES, _SERVICES) for (name,) in self._connection.execute(query)})

    def last_step(self, task_id: str) -> tuple[int, int] | None:
        """Return the start (Unix nanoseconds) and step of the save that ended last in a task run, whatever its outcome.

        Saves without a step are ignored. None if there is no other.
        """
        with translate_errors(self.path):
            row: tuple[int, int] | None = self._connection.execute(_LAST_STEP, (task_id,)).fetchone()
            return row

    def removed(self) -> list[tuple[str, int, int, int]]:
        """Return what was removed so far, by reason (`age` or `size`): numbers of traces and operations, and when, in Unix nanoseconds."""
        with translate_errors(self.path):
            return self._connection.execute("SELECT reason, traces, operations, last_unix_nano FROM removed ORDER BY reason").fetchall()

    def newest(self, limit: int = 20, *, matching: OperationFilter = ALL) -> list[TraceSummary]:
        """Return up to `limit` traces, that which ended last first. With a filter: those in which an operation matches, by its end."""
        with translate_errors(self.path):
            conditions, values = _conditions(matching)
            if len(values) == 2:  # only the times
                return [TraceSummary(*row) for row in self._connection.execute(_NEWEST, (*values, limit))]
            traces: dict[int, None] = {}
            for (trace,) in self._connection.execute(f"SELECT trace FROM operation {conditions}", values):  # noqa: S608
                traces[trace] = None
                if len(traces) == limit:
                    break
            return [TraceSummary(*row) for trace in traces for row in self._connection.execute(f"{_SUMMARY} WHERE id = ?", (trace,))]

    def summary(self, trace_id: str) -> TraceSummary | None:
        """Return the summary of a trace, or None if there is no such trace. Safe in a program that forks."""
        with translate_errors(self.path), sqlite.snapshot(self._connection):
            rows = self._connection.execute(_BY_ID, (trace_id,)).fetchall()
            return TraceSummary(*rows[0]) if rows else None

    def find(self, prefix: str, limit: int = 20) -> list[TraceSummary]:
        """Return up to `limit` traces whose id starts with `prefix`, by id: several if it is ambiguous, an empty list if there is none."""
        prefix = prefix.lower()
        with translate_errors(self.path):  # "g" sorts after every hex digit
            return [TraceSummary(*row) for row in self._connection.execute(_BY_PREFIX, (prefix, prefix + "g", limit))]

    def spans(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace, parents before children and siblings by start. Empty if there is no such trace."""
        with translate_errors(self.path):
            groups = [self._group(row) for row in self._connection.execute(_BY_TRACE, (trace_id,)).fetchall()]
            return [node.span for node in walk(span for group in groups for span in (group.span, *group.phases))]

    def operations(self, matching: OperationFilter = ALL, *, phases: bool = True) -> Iterator[OperationGroup]:
        """Yield matching operations, tasks and other spans, that which ended last first. Without their phases, it takes half the time."""
        with translate_errors(self.path):
            conditions, values = _conditions(matching)
            for row in self._connection.execute(_OPERATIONS + conditions, values):
                yield self._group(row, phases=phases)

    def newest_position(self) -> int:
        """Return the position of what was stored last, for `stored_after`."""
        with translate_errors(self.path):
            return int(self._connection.execute("SELECT max(0, coalesce(max(id), 0)) FROM operation").fetchone()[0])

    def stored_after(self, position: int, limit: int) -> list[tuple[int, OperationGroup]]:
        """Return up to `limit` operations that were stored after a position, each with its position, in the order of their arrival."""
        with translate_errors(self.path):
            rows = self._connection.execute(_STORED_AFTER, (min(max(position, 0), _MAX_INTEGER), limit)).fetchall()
            return [(row[0], self._group(row)) for row in rows]

    def _group(self, row: tuple[Any, ...], *, phases: bool = True) -> OperationGroup:
        _, trace_id, resource, *columns = row
        if not phases:
            columns[_PHASES] = None
        return from_row(trace_id, self._resource(resource or "{}"), columns)

    def _resource(self, text: str) -> dict[str, Any]:
        """Return a resource. The operations of a process share the object."""
        if text not in self._resources:
            self._resources[text] = decode_resource(text)
        return self._resources[text]


def _times(matching: OperationFilter) -> tuple[int, int]:
    since, until = matching.since_unix_nano or 0, matching.until_unix_nano
    return _clamp(since), _MAX_INTEGER if until is None else _clamp(until)


def _clamp(number: int) -> int:
    """Return the nearest integer that SQLite can compare: the year 2300 is beyond."""
    return max(-_MAX_INTEGER, min(number, _MAX_INTEGER))


@lru_cache(maxsize=128)
def _conditions(matching: OperationFilter) -> tuple[str, tuple[Any, ...]]:
    """Return the condition and the order of a query for operations, and its parameters, the two times first.

    The names are fields of the filter. Cached, because it takes a third of a query that finds nothing, and viewers repeat their queries.
    """
    conditions, values = ["operation.end_unix_nano >= ?", "operation.end_unix_nano < ?"], list[Any](_times(matching))
    for column in ATTRIBUTES:
        if (value := getattr(matching, column)) is not None:
            conditions.append(f"operation.{column} = ?")
            values.append(value)
            if column in UNINDEXED and value != UNINDEXED[column]:  # repeats the condition of the index, so that it can be used
                conditions.append(f"operation.{column} <> '{UNINDEXED[column]}'")
    if matching.service is not None:
        conditions.append(_SERVICE)
        values.append(matching.service)
    for comparison, size in ((">=", matching.min_bytes), ("<=", matching.max_bytes)):
        if size is not None:
            conditions.append(f"operation.stored_bytes {comparison} ?")
            values.append(_clamp(size))
    return f"WHERE {' AND '.join(conditions)} ORDER BY operation.end_unix_nano DESC", tuple(values)
