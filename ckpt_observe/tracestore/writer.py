"""Writes operations to the store.

A batch is one transaction, durable when `write` returns. A repeated operation replaces the earlier copy. Several processes may write at the
same time.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.support.sqlite import insert_rows, transaction
from ckpt_observe.tracestore import database
from ckpt_observe.tracestore.database import translate_errors
from ckpt_observe.tracestore.operation_groups import OperationGroup, group_by_operation
from ckpt_observe.tracestore.operation_rows import COLUMNS, encode_resource, to_row
from ckpt_observe.tracestore.trace_limits import DEFAULT_LIMITS, LimitEnforcer, TraceLimits

_INSERT: Final = f"INSERT OR REPLACE INTO operation (id, {', '.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)})"  # noqa: S608, our own names
_ADD_TRACE: Final = "INSERT INTO trace VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_TO_TRACE: Final = """
UPDATE trace SET
    name = CASE WHEN :start < start_unix_nano OR :start = start_unix_nano AND :is_root THEN :name ELSE name END,
    start_unix_nano = min(start_unix_nano, :start),
    end_unix_nano = max(end_unix_nano, :end),
    spans = spans + :spans,
    operations = operations + :operations,
    errors = errors + :errors,
    interrupted = interrupted + :interrupted
WHERE id = :id
"""
"""Adds operations to the summary of their trace, so that listing traces never counts operations.

A trace is named after its earliest span. That is usually the task, which ends last and so arrives last."""
_IDS_PER_QUERY: Final = 500
"""Below the parameter limit of old SQLite versions (999)."""
_OLDEST_ID: Final = -(1 << 62)
_ID_NANOSECONDS: Final = 50_000
"""Nanoseconds for each id: a program may store 20,000 operations per second, and ids take six bytes until the year 2190."""


class TraceWriter:
    """Writes one store, from one thread at a time. TraceStoreError if the file cannot be opened."""

    def __init__(self, path: Path, limits: TraceLimits = DEFAULT_LIMITS) -> None:
        self.path = path
        self._connection = database.connect(path, create=True)
        self._limit_enforcer = LimitEnforcer(self._connection, limits)

    def write(self, spans: Sequence[Span]) -> None:
        """Store all spans or none, then remove some old traces if the store exceeds its limits. TraceStoreError if that fails."""
        with translate_errors(self.path):
            groups = group_by_operation(spans)
            with transaction(self._connection):
                # Ids grow with time: after the removal of the newest operation, SQLite would use its id again, and a reader that follows
                # the store would miss the next operation.
                last = self._connection.execute("SELECT max(id) FROM operation WHERE id > 0").fetchone()[0] or 0
                _insert(self._connection, groups, max(last + 1, time.time_ns() // _ID_NANOSECONDS))
            self._limit_enforcer.enforce(time.time_ns())

    def write_former(self, spans: Sequence[Span]) -> None:
        """Store spans of the former store, with positions before all others: for readers that follow the store they are not new."""
        with translate_errors(self.path):
            groups = group_by_operation(spans)
            with transaction(self._connection):
                last = self._connection.execute("SELECT max(id) FROM operation WHERE id < 0").fetchone()[0] or _OLDEST_ID
                _insert(self._connection, groups, last + 1)

    def close(self) -> None:
        self._connection.close()


def _insert(connection: sqlite3.Connection, groups: list[OperationGroup], first_id: int) -> None:
    rows = [to_row(group) for group in groups]
    resources = _resource_ids(connection, groups)
    traces = _add_to_traces(connection, groups)
    values = [
        (number, traces[group.span.trace_id], resources[id(group.span.resource)], *row)
        for number, (group, row) in enumerate(zip(groups, rows, strict=True), first_id)
    ]
    insert_rows(connection, _INSERT, values)


def _resource_ids(connection: sqlite3.Connection, groups: Iterable[OperationGroup]) -> dict[int, int]:
    """Return the row of each resource, by the `id()` of the object: all spans of a process share one.

    Not cached between batches: another process may remove unused resources.
    """
    resources = {id(group.span.resource): group.span.resource for group in groups}
    rows = {}
    for key, resource in resources.items():
        text = encode_resource(resource)
        connection.execute("INSERT INTO resource (attributes) VALUES (?) ON CONFLICT DO NOTHING", (text,))
        rows[key] = int(connection.execute("SELECT id FROM resource WHERE attributes = ?", (text,)).fetchone()[0])
    return rows


def _add_to_traces(connection: sqlite3.Connection, groups: list[OperationGroup]) -> dict[str, int]:
    """Add operations to the summaries of their traces. Return the number of each trace."""
    by_trace: dict[str, list[OperationGroup]] = {}
    for group in groups:
        by_trace.setdefault(group.span.trace_id, []).append(group)
    numbers = _trace_numbers(connection, list(by_trace))
    summaries = [_summarize(members) | {"id": numbers[trace_id]} for trace_id, members in by_trace.items() if trace_id in numbers]
    last = connection.execute("SELECT coalesce(max(id), 0) FROM trace").fetchone()[0]
    new = {trace_id: number for number, trace_id in enumerate((each for each in by_trace if each not in numbers), last + 1)}
    connection.executemany(_ADD_TO_TRACE, summaries)
    # The columns are in the order of the summary.
    insert_rows(
        connection, _ADD_TRACE, [(number, trace_id, *_summarize(by_trace[trace_id]).values())[:9] for trace_id, number in new.items()]
    )
    return numbers | new


def _trace_numbers(connection: sqlite3.Connection, trace_ids: list[str]) -> dict[str, int]:
    """Return the numbers of those traces that are in the store."""
    numbers: dict[str, int] = {}
    for start in range(0, len(trace_ids), _IDS_PER_QUERY):
        chunk = trace_ids[start : start + _IDS_PER_QUERY]
        places = ",".join("?" * len(chunk))
        numbers.update(connection.execute(f"SELECT trace_id, id FROM trace WHERE trace_id IN ({places})", chunk))  # noqa: S608, question marks
    return numbers


def _summarize(members: list[OperationGroup]) -> dict[str, Any]:
    """Return what operations of one trace add to its summary."""
    if len(members) == 1:
        return _summarize_one(members[0])
    spans = [group.span for group in members]
    earliest = min(spans, key=lambda span: (span.start_unix_nano, span.parent_span_id != ""))
    outcomes = [span.attributes.get(names.OUTCOME) for span in spans if names.OPERATION in span.attributes]
    return {
        "name": earliest.name,
        "start": earliest.start_unix_nano,
        "end": max([span.end_unix_nano for span in spans]),
        "spans": sum([1 + len(group.phases) for group in members]),
        "operations": len(outcomes),
        "errors": outcomes.count("error"),
        "interrupted": outcomes.count("interrupted"),
        "is_root": not earliest.parent_span_id,
    }


def _summarize_one(group: OperationGroup) -> dict[str, Any]:
    """Do the same for one operation, in half of the time: a save outside a task is a trace by itself."""
    span, is_operation = group.span, names.OPERATION in group.span.attributes
    outcome = span.attributes.get(names.OUTCOME) if is_operation else None
    return {
        "name": span.name,
        "start": span.start_unix_nano,
        "end": span.end_unix_nano,
        "spans": 1 + len(group.phases),
        "operations": int(is_operation),
        "errors": int(outcome == "error"),
        "interrupted": int(outcome == "interrupted"),
        "is_root": not span.parent_span_id,
    }
