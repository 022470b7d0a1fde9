"""Reads traces back as values. Every list goes along an index from the newest backwards and stops at its limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.tracestore import schema
from ckpt_observe.tracestore.failure import explained
from ckpt_observe.tracestore.order import walk
from ckpt_observe.tracestore.row import COLUMNS, from_row


class Filter(NamedTuple):
    """What one span of a trace must be for the trace to be listed; None asks for nothing."""

    name: str | None = None
    outcome: str | None = None
    operation: str | None = None
    task_name: str | None = None
    task_id: str | None = None
    session_id: str | None = None
    error_class: str | None = None


class TraceSummary(NamedTuple):
    """A trace as a line of a list."""

    trace_id: str
    name: str
    """Of its earliest span."""
    start_unix_nano: int
    end_unix_nano: int
    """When its newest span ended: a long task is as new as its last checkpoint."""
    spans: int
    operations: int
    errors: int
    """Operations that failed."""
    interrupted: int
    """Operations that their process did not live to finish."""


_EVERYTHING: Final = Filter()
_NEWEST: Final = "SELECT * FROM trace WHERE end_unix_nano >= ? ORDER BY end_unix_nano DESC LIMIT ?"
_BY_ID: Final = "SELECT * FROM trace WHERE trace_id = ?"
_BY_PREFIX: Final = "SELECT * FROM trace WHERE trace_id >= ? AND trace_id < ? ORDER BY trace_id LIMIT ?"
_SPANS: Final = (
    f"SELECT {', '.join(f'span.{column}' for column in COLUMNS)}, resource.attributes "  # noqa: S608, our own column names
    "FROM span JOIN resource ON resource.id = span.resource_id WHERE trace_id = ?"
)
_LAST_STEP: Final = (
    f"SELECT start_unix_nano, json_extract(attributes, '$.\"{names.STEP}\"') AS step FROM span "  # noqa: S608, our own name
    "WHERE task_id = ? AND operation = 'save' AND typeof(step) = 'integer' ORDER BY end_unix_nano DESC LIMIT 1"
)


class TraceReader:
    """The reading end of one store. Many may read while others write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = schema.connect(path, create=False)
        self._connection.execute("PRAGMA query_only = ON")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def last_step(self, task_id: str) -> tuple[int, int] | None:
        """When the last save of a task was begun, and its step."""
        with explained(self.path):
            found: tuple[int, int] | None = self._connection.execute(_LAST_STEP, (task_id,)).fetchone()
            return found

    def newest(self, limit: int = 20, *, since_unix_nano: int = 0, where: Filter = _EVERYTHING) -> list[TraceSummary]:
        """The traces in which something last ended, or something that `where` asks for; newest first."""
        with explained(self.path):
            if where == _EVERYTHING:
                return [TraceSummary(*row) for row in self._connection.execute(_NEWEST, (since_unix_nano, limit))]
            found: dict[str, None] = {}
            for trace_id in self._matching(since_unix_nano, where):
                if len(found) == limit:
                    break
                found[trace_id] = None
            return [TraceSummary(*row) for trace_id in found for row in self._connection.execute(_BY_ID, (trace_id,))]

    def find(self, prefix: str, limit: int = 20) -> list[TraceSummary]:
        """The traces whose id begins with this: one for a whole id or a unique prefix, more where it is ambiguous."""
        prefix = prefix.lower()
        with explained(self.path):  # `g` comes after every hex digit
            return [TraceSummary(*row) for row in self._connection.execute(_BY_PREFIX, (prefix, prefix + "g", limit))]

    def spans(self, trace_id: str) -> list[Span]:
        """The spans of a trace, parents before children and siblings by start; none if there is no such trace."""
        with explained(self.path):
            return [node.span for node in walk(from_row(row) for row in self._connection.execute(_SPANS, (trace_id,)))]

    def _matching(self, since_unix_nano: int, where: Filter) -> Iterator[str]:
        wanted = {column: value for column, value in where._asdict().items() if value is not None}
        conditions = "".join(f" AND {column} = ?" for column in wanted)
        query = f"SELECT trace_id FROM span WHERE end_unix_nano >= ?{conditions} ORDER BY end_unix_nano DESC"  # noqa: S608, fields of Filter
        for (trace_id,) in self._connection.execute(query, (since_unix_nano, *wanted.values())):
            yield trace_id
