"""Reads traces from the store. Every list follows an index, by time or by id, and stops at its limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.tracestore import database
from ckpt_observe.tracestore.database import translate_errors
from ckpt_observe.tracestore.span_rows import COLUMNS, from_row
from ckpt_observe.tracestore.tree import walk


class TraceFilter(NamedTuple):
    """Selects traces that contain a span with all of these values. None matches everything."""

    name: str | None = None
    outcome: str | None = None
    operation: str | None = None
    task_name: str | None = None
    task_id: str | None = None
    session_id: str | None = None
    error_class: str | None = None


class TraceSummary(NamedTuple):
    """One trace in a list."""

    trace_id: str
    name: str
    """The name of its earliest span."""
    start_unix_nano: int
    end_unix_nano: int
    """The latest end of its stored spans, so a task that is still running is as recent as its last checkpoint operation."""
    spans: int
    operations: int
    errors: int
    """Operations with the outcome `error`."""
    interrupted: int
    """Operations whose process died before they finished."""


_ALL: Final = TraceFilter()
_NEWEST: Final = "SELECT * FROM trace WHERE end_unix_nano >= ? ORDER BY end_unix_nano DESC LIMIT ?"
_BY_ID: Final = "SELECT * FROM trace WHERE trace_id = ?"
_BY_PREFIX: Final = "SELECT * FROM trace WHERE trace_id >= ? AND trace_id < ? ORDER BY trace_id LIMIT ?"
_SPANS: Final = (
    f"SELECT {', '.join(f'span.{column}' for column in COLUMNS)}, resource.attributes "  # noqa: S608, our own column names
    "FROM span JOIN resource ON resource.id = span.resource_id WHERE trace_id = ?"
)
_LAST_STEP: Final = (
    f"SELECT start_unix_nano, json_extract(attributes, '$.\"{names.STEP}\"') AS step FROM span "  # noqa: S608, our own name
    f"WHERE task_id = ? AND operation = 'save' AND typeof(step) = 'integer' AND attributes ->> '$.\"{names.NAMESPACE}\"' IS NULL "
    "ORDER BY end_unix_nano DESC LIMIT 1"
)


class TraceReader:
    """Reads one store. Any number of readers may work while others write. TraceStoreError if the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = database.connect(path, create=False)
        self._connection.execute("PRAGMA query_only = ON")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def totals(self) -> tuple[int, int]:
        """Return the number of traces and of their operations."""
        with translate_errors(self.path):
            traces, operations = self._connection.execute("SELECT count(*), coalesce(sum(operations), 0) FROM trace").fetchone()
        return traces, operations

    def last_step(self, task_id: str) -> tuple[int, int] | None:
        """Return the start (Unix nanoseconds) and step of the save that ended last in a task run, whatever its outcome.

        Saves without a step are ignored. None if there is no other.
        """
        with translate_errors(self.path):
            row: tuple[int, int] | None = self._connection.execute(_LAST_STEP, (task_id,)).fetchone()
            return row

    def newest(self, limit: int = 20, *, since_unix_nano: int = 0, matching: TraceFilter = _ALL) -> list[TraceSummary]:
        """Return up to `limit` traces that ended at `since_unix_nano` or later, newest first. With a filter, only matching spans count."""
        with translate_errors(self.path):
            if matching == _ALL:
                return [TraceSummary(*row) for row in self._connection.execute(_NEWEST, (since_unix_nano, limit))]
            trace_ids: dict[str, None] = {}
            for trace_id in self._matching_trace_ids(since_unix_nano, matching):
                if len(trace_ids) == limit:
                    break
                trace_ids[trace_id] = None
            return [TraceSummary(*row) for trace_id in trace_ids for row in self._connection.execute(_BY_ID, (trace_id,))]

    def find(self, prefix: str, limit: int = 20) -> list[TraceSummary]:
        """Return up to `limit` traces whose id starts with `prefix`, by id: several if it is ambiguous, an empty list if there is none."""
        prefix = prefix.lower()
        with translate_errors(self.path):  # "g" sorts after every hex digit
            return [TraceSummary(*row) for row in self._connection.execute(_BY_PREFIX, (prefix, prefix + "g", limit))]

    def spans(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace, parents before children and siblings by start. Empty if there is no such trace."""
        with translate_errors(self.path):
            return [node.span for node in walk(from_row(row) for row in self._connection.execute(_SPANS, (trace_id,)))]

    def _matching_trace_ids(self, since_unix_nano: int, matching: TraceFilter) -> Iterator[str]:
        """Yield the trace id of each matching span, latest end first. A trace id may be repeated."""
        values = {column: value for column, value in matching._asdict().items() if value is not None}
        conditions = "".join(f" AND {column} = ?" for column in values)
        query = f"SELECT trace_id FROM span WHERE end_unix_nano >= ?{conditions} ORDER BY end_unix_nano DESC"  # noqa: S608, fields of TraceFilter
        for (trace_id,) in self._connection.execute(query, (since_unix_nano, *values.values())):
            yield trace_id
