"""Reads traces from the store. Every list follows an index, by time or by id, and stops at its limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.tracestore import database
from ckpt_observe.tracestore.database import translate_errors
from ckpt_observe.tracestore.operation_filter import ALL, OperationFilter
from ckpt_observe.tracestore.operation_groups import OperationGroup, group_by_operation
from ckpt_observe.tracestore.span_rows import COLUMNS, FACETS, from_row
from ckpt_observe.tracestore.summary import TraceSummary
from ckpt_observe.tracestore.tree import walk

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

    def newest(self, limit: int = 20, *, matching: OperationFilter = ALL) -> list[TraceSummary]:
        """Return up to `limit` traces, that which ended last first. With a filter: those in which an operation matches, by its end."""
        with translate_errors(self.path):
            if matching == OperationFilter(since_unix_nano=matching.since_unix_nano):
                return [TraceSummary(*row) for row in self._connection.execute(_NEWEST, (matching.since_unix_nano or 0, limit))]
            trace_ids: dict[str, None] = {}
            for group in self.operations(matching):
                trace_ids[group.span.trace_id] = None
                if len(trace_ids) == limit:
                    break
            return [TraceSummary(*row) for trace_id in trace_ids for row in self._connection.execute(_BY_ID, (trace_id,))]

    def summary(self, trace_id: str) -> TraceSummary | None:
        """Return the summary of a trace, or None if there is no such trace."""
        with translate_errors(self.path):
            row = self._connection.execute(_BY_ID, (trace_id,)).fetchone()
            return TraceSummary(*row) if row else None

    def find(self, prefix: str, limit: int = 20) -> list[TraceSummary]:
        """Return up to `limit` traces whose id starts with `prefix`, by id: several if it is ambiguous, an empty list if there is none."""
        prefix = prefix.lower()
        with translate_errors(self.path):  # "g" sorts after every hex digit
            return [TraceSummary(*row) for row in self._connection.execute(_BY_PREFIX, (prefix, prefix + "g", limit))]

    def spans(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace, parents before children and siblings by start. Empty if there is no such trace."""
        with translate_errors(self.path):
            return [node.span for node in walk(from_row(row) for row in self._connection.execute(_SPANS, (trace_id,)))]

    def operations(self, matching: OperationFilter = ALL) -> Iterator[OperationGroup]:
        """Yield matching operations, tasks and other spans with their phases, that which ended last first."""
        values = {column: getattr(matching, column) for column in FACETS if getattr(matching, column) is not None}
        conditions = "".join(f" AND {column} = ?" for column in values)
        until = (1 << 63) - 1 if matching.until_unix_nano is None else matching.until_unix_nano
        query = (
            f"SELECT trace_id, span_id FROM span WHERE end_unix_nano >= ? AND end_unix_nano < ?{conditions} "  # noqa: S608, our own names
            "ORDER BY end_unix_nano DESC"
        )
        with translate_errors(self.path):
            groups: dict[tuple[str, str], OperationGroup] = {}
            for key in self._connection.execute(query, (matching.since_unix_nano or 0, until, *values.values())):
                if key not in groups:
                    groups = {
                        (group.span.trace_id, span.span_id): group
                        for group in group_by_operation(self.spans(key[0]))
                        for span in (group.span, *group.phases)
                    }
                group = groups[key]
                if group.span.span_id == key[1] and matching.matches(group.span):
                    yield group

    def newest_position(self) -> int:
        """Return the position of what was stored last, for `stored_after`."""
        with translate_errors(self.path):
            return int(self._connection.execute("SELECT coalesce(max(id), 0) FROM span").fetchone()[0])

    def stored_after(self, position: int, limit: int) -> list[tuple[int, OperationGroup]]:
        """Return up to `limit` operations that were stored after a position, each with its own, in the order in which they were stored."""
        query = "SELECT id, trace_id, span_id FROM span WHERE id > ? ORDER BY id LIMIT ?"
        with translate_errors(self.path):
            rows = self._connection.execute(query, (position, limit)).fetchall()
            keys = {(trace_id, span_id): number for number, trace_id, span_id in rows}
            groups = [group for trace_id in dict.fromkeys(row[1] for row in rows) for group in group_by_operation(self.spans(trace_id))]
            stored = [
                (keys[group.span.trace_id, group.span.span_id], group)
                for group in groups
                if (group.span.trace_id, group.span.span_id) in keys
            ]
            return sorted(stored, key=lambda entry: entry[0])
