"""Writes spans into the store, and keeps it below its size.

A batch is one transaction and durable when `write` returns. A span that comes again replaces itself. Several processes may
write at once. One writer is used by one thread at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.tracestore import schema
from ckpt_observe.tracestore.failure import explained
from ckpt_observe.tracestore.row import COLUMNS, FACETS, to_json, to_row

MAX_BYTES: Final = 512 * 1024 * 1024
"""About half a million spans: months of one agent, and no disk that runs a checkpointing program misses it."""

_WRITTEN: Final = (*COLUMNS, *FACETS, "resource_id")
_UPSERT: Final = (
    f"INSERT INTO span ({', '.join(_WRITTEN)}) VALUES ({', '.join('?' * len(_WRITTEN))}) "  # noqa: S608, our own column names
    f"ON CONFLICT (trace_id, span_id) DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in _WRITTEN[2:])}"
)


class TraceWriter:
    """The writing end of one store."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._connection = schema.connect(path, create=True)

    def write(self, spans: Sequence[Span]) -> None:
        """Has all of them or none; raises TraceStoreError."""
        with explained(self.path):
            once = {(span.trace_id, span.span_id): span for span in spans}
            rows = [(to_row(span), to_json(span.resource)) for span in once.values()]
            with schema.transaction(self._connection):
                resources = self._resources({resource for _, resource in rows})
                last = self._connection.execute("SELECT max(id) FROM span").fetchone()[0] or 0
                self._connection.executemany(_UPSERT, ((*row, resources[resource]) for row, resource in rows))
                new = set(self._connection.execute("SELECT trace_id, span_id FROM span WHERE id > ?", (last,)))
                self._connection.executemany(schema.COUNT_IN, _lines(span for key, span in once.items() if key in new))
                _prune(self._connection, self._max_bytes)

    def close(self) -> None:
        self._connection.close()

    def _resources(self, texts: Iterable[str]) -> dict[str, int]:
        # Not remembered between batches: another process may prune what nobody uses.
        ids = {}
        for text in texts:
            self._connection.execute("INSERT INTO resource (attributes) VALUES (?) ON CONFLICT DO NOTHING", (text,))
            ids[text] = int(self._connection.execute("SELECT id FROM resource WHERE attributes = ?", (text,)).fetchone()[0])
        return ids


def _lines(spans: Iterable[Span]) -> Iterator[tuple[Any, ...]]:
    """What new spans add to the line of each trace in the list."""
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    for trace_id, found in traces.items():
        earliest = min(found, key=lambda span: (span.start_unix_nano, span.parent_span_id != ""))
        outcomes = [span.attributes.get(names.OUTCOME) for span in found if names.OPERATION in span.attributes]
        counts = (len(found), len(outcomes), outcomes.count("error"), outcomes.count("interrupted"))
        end = max(span.end_unix_nano for span in found)
        yield trace_id, earliest.name, earliest.start_unix_nano, end, *counts, not earliest.parent_span_id


def _prune(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Removes whole traces, longest idle first, until the rest fits; a trace that alone does not fit loses its oldest spans."""
    pruned = False
    while _used_bytes(connection) > max_bytes:
        oldest = connection.execute("SELECT trace_id, spans FROM trace ORDER BY end_unix_nano, trace_id LIMIT 2").fetchall()
        if len(oldest) > 1:
            _drop_trace(connection, oldest[0][0])
        elif oldest and oldest[0][1] > 1:
            connection.execute("DELETE FROM span WHERE id IN (SELECT id FROM span ORDER BY id LIMIT ?)", (max(1, oldest[0][1] // 10),))
        else:
            break
        pruned = True
    if pruned:
        connection.execute("DELETE FROM resource WHERE NOT EXISTS (SELECT 1 FROM span WHERE resource_id = resource.id)")


def _drop_trace(connection: sqlite3.Connection, trace_id: str) -> None:
    connection.execute("DELETE FROM trace WHERE trace_id = ?", (trace_id,))
    connection.execute("DELETE FROM span WHERE trace_id = ?", (trace_id,))


def _used_bytes(connection: sqlite3.Connection) -> int:
    """Pages that hold something. The file does not shrink, but it fills its free pages before it grows."""
    pages, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size"))
    return (pages - free) * size
